//! Any order of events: nothing hangs, no healthy worker restarts, nothing is counted twice.

use proptest::prelude::*;

use super::world::{World, id};
use crate::restart::{Blockage, EscalateAfter, Exit, Generation, GroupPhase, Heartbeat, Phase, Scope};

const WORKERS: u32 = 3;
const MAX_RESTARTS: u32 = 50;

#[derive(Debug, Clone)]
enum Event {
    Step,
    Obey,
    /// The worker of this index exits by itself, if it runs.
    Fail(u32),
    /// Its container goes away and comes back.
    Container(u32),
    /// Its pod goes away and comes back.
    Pod(u32),
    /// The worker of this index runs, but no longer gives a heartbeat.
    Hang(u32),
    /// A worker gives its heartbeats, again or still, or has yet to give its first.
    Beat(u32, bool),
    /// Its pod goes away.
    LosePod(u32),
    /// The control plane replaces and deletes pods as planned.
    TendPods,
    /// Kubernetes marks its node as lost, or as back.
    Node(u32, bool),
    /// This much time passes, in milliseconds.
    Time(u64),
    Unlink(u32),
    Relink(u32),
    NewLeader,
    /// A user requests a restart of this worker.
    Ask(u32),
    /// From now on writes are confirmed, or lost.
    Confirm(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let index = 0..WORKERS;
    let event = prop_oneof![
        4 => Just(Event::Step),
        4 => Just(Event::Obey),
        2 => index.clone().prop_map(Event::Fail),
        1 => index.clone().prop_map(Event::Container),
        1 => index.clone().prop_map(Event::Pod),
        1 => index.clone().prop_map(Event::Hang),
        1 => (index.clone(), any::<bool>()).prop_map(|(index, first)| Event::Beat(index, first)),
        1 => index.clone().prop_map(Event::Unlink),
        2 => index.clone().prop_map(Event::Relink),
        1 => index.clone().prop_map(Event::LosePod),
        2 => Just(Event::TendPods),
        1 => (index.clone(), any::<bool>()).prop_map(|(index, lost)| Event::Node(index, lost)),
        1 => prop_oneof![Just(1_000), Just(10_000)].prop_map(Event::Time),
        1 => index.prop_map(Event::Ask),
        1 => Just(Event::NewLeader),
        1 => any::<bool>().prop_map(Event::Confirm),
    ];
    proptest::collection::vec(event, 0..60)
}

struct Run {
    world: World,
    epoch: u64,
    /// The former state of each unlinked worker.
    hidden: Vec<Option<(Phase, Generation)>>,
    injected: u32,
    /// The number of requests so far.
    asked: u32,
}

impl Run {
    /// Workers from index `alone` on have worker restarts.
    fn new(escalates: bool, worker_restarts: u32) -> Self {
        let mut world = World::running(WORKERS, MAX_RESTARTS);
        for (identity, worker) in &mut world.observed.workers {
            if identity.index >= worker_restarts {
                worker.scope = Scope::Worker;
            }
        }
        world.observed.policy.escalate_after = escalates.then_some(EscalateAfter {
            failures: 2,
            within_ms: 600_000,
        });
        Self {
            world,
            epoch: 1,
            hidden: vec![None; WORKERS as usize],
            injected: 0,
            asked: 0,
        }
    }

    fn exists(&self, index: u32) -> bool {
        !self.world.observed.workers[&id(index)].pods.is_empty()
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Step => {
                self.world.step();
            }
            Event::Obey => self.world.obey(),
            Event::Confirm(confirm) => self.world.confirm = confirm,
            Event::NewLeader => {
                self.epoch += 1;
                self.world.new_leader(self.epoch);
            }
            Event::Fail(index)
                if self.exists(index) && self.world.current(index).1.phase == Phase::Running =>
            {
                self.injected += 1;
                self.world.fail(index);
            }
            Event::Hang(index)
                if self.exists(index) && self.world.current(index).1.phase == Phase::Running =>
            {
                self.injected += 1;
                self.world.beat(index, Heartbeat::Missed);
            }
            Event::Beat(index, first)
                if self.exists(index) && self.world.current(index).1.phase == Phase::Running =>
            {
                let heartbeat = if first {
                    Heartbeat::Awaited
                } else {
                    Heartbeat::Well
                };
                self.world.beat(index, heartbeat);
            }
            Event::Container(index) if self.exists(index) => {
                self.injected += 1;
                self.hidden[index as usize] = None;
                let (old, report) = self.world.current(index);
                self.world.report(
                    &old,
                    index,
                    Phase::Lost(Exit { code: 137, signal: 9 }),
                    report.generation,
                );
                self.world.container(index);
            }
            Event::Pod(index) => {
                self.injected += 1;
                self.hidden[index as usize] = None;
                self.world.lose_pod(index);
                self.world.pod(index);
            }
            Event::LosePod(index) if self.exists(index) => {
                self.injected += 1;
                self.hidden[index as usize] = None;
                self.world.lose_pod(index);
            }
            Event::TendPods => self.tend_pods(),
            Event::Node(index, lost) if self.exists(index) => {
                let worker = self.world.observed.workers.get_mut(&id(index)).unwrap();
                worker.pods[0].node_lost = lost;
            }
            Event::Time(millis) => self.world.tick(millis),
            Event::Unlink(index) if self.exists(index) && self.hidden[index as usize].is_none() => {
                let report = self.world.current(index).1;
                self.hidden[index as usize] = Some((report.phase, report.generation));
                self.world.set_phase(index, Phase::Unlinked);
            }
            Event::Relink(index) => self.relink(index),
            Event::Ask(index) => {
                self.asked += 1;
                let request = format!("worker/js-workers-0/{index} {}", self.asked);
                self.world.observed.worker_restart_request = request.parse().ok();
            }
            _ => {}
        }
    }

    fn tend_pods(&mut self) {
        for condemned in &self.world.condemned {
            let pods = &self.world.observed.workers[&condemned.identity].pods;
            // The pod that took its place stays.
            if pods.iter().any(|pod| pod.uid == condemned.pod_uid) {
                self.hidden[condemned.identity.index as usize] = None;
            }
        }
        self.world.tend_pods();
    }

    fn relink(&mut self, index: u32) {
        if let Some((phase, generation)) = self.hidden[index as usize].take() {
            let (incarnation, _) = self.world.current(index);
            self.world.report(&incarnation, index, phase, generation);
        }
    }

    /// The network heals, the API server answers, lost pods are replaced: all must run again.
    fn heal(&mut self) {
        self.world.confirm = true;
        self.world.observed.old_pods = 0;
        for index in 0..WORKERS {
            self.relink(index);
            if !self.exists(index) {
                self.world.pod(index);
            }
            let worker = self.world.observed.workers.get_mut(&id(index)).unwrap();
            worker.pods[0].node_lost = false;
        }
        self.world.settle();
        // A pod that must go is replaced, and its worker parks like the others.
        self.tend_pods();
        self.world.settle();
        let held = |world: &World| (0..WORKERS).any(|index| world.current(index).1.phase == Phase::Parked);
        if held(&self.world) {
            // It is being made to wait.
            self.world.tick(60_000);
            self.world.settle();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_all_workers_run_in_the_end_and_no_failure_counts_twice(
        events in events(),
        escalates in any::<bool>(),
        worker_restarts in 0..=WORKERS,
    ) {
        let mut run = Run::new(escalates, worker_restarts);
        for event in &events {
            run.apply(event);
        }
        run.heal();
        let world = &run.world;
        let state = world.coordinator.phase();
        prop_assert_eq!(state, GroupPhase::InSync);
        for index in 0..WORKERS {
            let report = world.current(index).1;
            prop_assert_eq!(report.phase, Phase::Running);
            let of_group = world.coordinator.generation();
            if index >= worker_restarts {
                prop_assert!(report.generation >= of_group);
            } else {
                prop_assert_eq!(report.generation, of_group);
            }
        }
        prop_assert!(world.observed.durable.worker_restarts.is_empty());
        prop_assert!(world.observed.durable.counted_restarts <= run.injected, "{} restarts for {} failures", world.observed.durable.counted_restarts, run.injected);
        prop_assert_eq!(world.observed.durable.generation, world.coordinator.generation());
        prop_assert!(world.observed.durable.counted_restarts <= MAX_RESTARTS);
        prop_assert_eq!(run.world.step().blocked, Blockage::Clear);
        prop_assert_eq!(run.world.step().condemned, vec![]);
    }

    #[test]
    fn a_worker_restart_touches_no_other_worker(events in events()) {
        let mut run = Run::new(false, 1);
        let (first, _) = run.world.current(0);
        for event in &events {
            match event {
                Event::Fail(0) | Event::Hang(0) | Event::Container(0) | Event::Pod(0) | Event::LosePod(0) => {}
                event => run.apply(event),
            }
        }
        run.heal();
        let world = &run.world;
        prop_assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        prop_assert_eq!(world.coordinator.generation(), Generation(0));
        prop_assert_eq!(&world.current(0).0, &first);
        prop_assert_eq!(world.starts[&first], 1);
        prop_assert_eq!(world.recreations, 0);
        for index in 0..WORKERS {
            prop_assert_eq!(world.current(index).1.phase, Phase::Running);
        }
        prop_assert!(world.observed.durable.worker_restarts.is_empty());
        prop_assert!(world.observed.durable.counted_restarts <= run.injected);
    }

    #[test]
    fn a_request_restarts_no_other_worker_and_does_not_count(events in events()) {
        let mut run = Run::new(false, 1);
        let starts = run.world.starts.clone();
        let mut named = [0; WORKERS as usize];
        for event in &events {
            match event {
                Event::Fail(_) | Event::Hang(_) | Event::Container(_) | Event::Pod(_) | Event::LosePod(_) => {}
                event => {
                    if let Event::Ask(index) = event {
                        named[*index as usize] += 1;
                    }
                    run.apply(event);
                }
            }
        }
        run.heal();
        let world = &run.world;
        prop_assert_eq!(world.coordinator.generation(), Generation(0));
        prop_assert_eq!(world.observed.durable.counted_restarts, 0);
        prop_assert!(world.observed.durable.worker_restarts.is_empty());
        for (incarnation, count) in &world.starts {
            let index = world.observed.reports[incarnation].identity.index;
            // Worker 0 has no worker restart, even on request. The replacement of a pod in which a
            // worker did not come up in time is another incarnation.
            let most = if index == 0 { 0 } else { named[index as usize] };
            let before = starts.get(incarnation).copied().unwrap_or_default();
            prop_assert!(*count <= before + most, "worker {index} was started {count} times");
        }
        for index in 0..WORKERS {
            prop_assert_eq!(world.current(index).1.phase, Phase::Running);
        }
    }

    #[test]
    fn without_a_failure_nothing_restarts_under_any_leader_and_whatever_is_out_of_sight(
        events in events(),
        worker_restarts in 0..=WORKERS,
    ) {
        let mut run = Run::new(true, worker_restarts);
        let starts = run.world.starts.clone();
        for event in events.iter().filter(|event| !matches!(event, Event::Fail(_) | Event::Hang(_) | Event::Container(_) | Event::Pod(_) | Event::LosePod(_) | Event::Ask(_))) {
            run.apply(event);
        }
        run.heal();
        prop_assert_eq!(&run.world.starts, &starts);
        prop_assert_eq!(run.world.restarts(), 0);
        prop_assert_eq!(run.world.coordinator.generation(), Generation(0));
    }
}

/// The pod has already been replaced when the control plane deletes it.
#[test]
fn a_worker_out_of_sight_in_a_newer_pod_than_the_condemned_one_is_seen_again() {
    let events = [
        Event::Container(0),
        Event::Step,
        Event::Obey,
        Event::Step,
        Event::Container(0),
        Event::Step,
        Event::Pod(0),
        Event::Unlink(0),
        Event::TendPods,
    ];
    let mut run = Run::new(true, 1);
    for event in &events {
        run.apply(event);
    }
    run.heal();
    assert_eq!(run.world.coordinator.phase(), GroupPhase::InSync);
}
