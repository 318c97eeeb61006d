//! Groups without agents: containers are killed, and the kubelet restarts them.

use proptest::prelude::*;

use super::nodes::{CRASHED, KILLED, Nodes};
use super::world::id;
use crate::restart::{Announcement, Exit, Generation, GroupPhase, Phase, Reason, RestartLevel, Scope};

#[test]
fn a_group_starts_without_a_stop_and_with_one_write() {
    let nodes = Nodes::running(3, 3);
    assert_eq!((nodes.stops, nodes.writes, nodes.restarts()), (0, 1, 0));
}

#[test]
fn one_failure_stops_the_others_once_and_costs_two_writes() {
    let mut nodes = Nodes::running(3, 3);
    let writes = nodes.writes;
    nodes.end(1, CRASHED);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(nodes.running_at(Generation(1)), 3);
    assert_eq!(nodes.stops, 2, "the failed one is not stopped");
    assert_eq!(
        (nodes.observed.durable.counted_restarts, nodes.writes - writes),
        (1, 2)
    );
    let Some(Announcement::Restarted {
        level: RestartLevel::Container,
        cause,
        timeline,
        scope: Scope::Group,
    }) = nodes.announcements.last()
    else {
        panic!("{:?}", nodes.announcements)
    };
    assert_eq!((cause.reason, cause.exit), (Reason::WorkerExited, Some(CRASHED)));
    assert_eq!(cause.identity, Some(id(1)));
    assert_eq!(timeline.workers, 3);
    assert!(timeline.detected_at <= timeline.stopped_at && timeline.stopped_at <= timeline.running_at);
    assert_eq!(nodes.observed.durable.level, Some(RestartLevel::Container));
}

#[test]
fn a_collapse_of_all_workers_costs_one_restart_and_stops_no_container() {
    let mut nodes = Nodes::running(4, 3);
    for index in 0..4 {
        nodes.end(index, CRASHED);
    }
    nodes.settle();
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 0));
    assert_eq!(nodes.running_at(Generation(1)), 4);
}

#[test]
fn a_container_that_kubelet_was_quick_to_start_again_is_not_stopped() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, CRASHED);
    nodes.kubelet(0);
    nodes.settle();
    assert_eq!((nodes.stops, nodes.running_at(Generation(1))), (1, 2));
}

#[test]
fn a_failure_while_the_others_still_stop_is_absorbed() {
    let mut nodes = Nodes::running(3, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(0);
    nodes.kubelet(0);
    assert_eq!(nodes.running_at(Generation(1)), 1);
    nodes.look();
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.settle();
    assert_eq!(nodes.observed.durable.counted_restarts, 1);
    assert_eq!(nodes.running_at(Generation(1)), 3);
}

#[test]
fn a_new_leader_absorbs_it_too_once_they_have_stopped() {
    let mut nodes = Nodes::running(3, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(0);
    nodes.kubelet(0);
    nodes.look();
    nodes.end(0, CRASHED);
    nodes.look();
    for index in 1..3 {
        nodes.daemon(index);
    }
    nodes.kubelet(1);
    nodes.new_leader(2);
    nodes.settle();
    assert_eq!(nodes.observed.durable.counted_restarts, 1);
    assert_eq!(nodes.running_at(Generation(1)), 3);
}

#[test]
fn a_failure_after_all_were_stopped_is_another_restart() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(1);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    nodes.daemon(0);
    nodes.kubelet(0);
    nodes.look();
    nodes.end(0, CRASHED);
    nodes.settle();
    assert_eq!(nodes.observed.durable.counted_restarts, 2);
    assert_eq!(nodes.running_at(Generation(2)), 2);
}

#[test]
fn a_pod_that_is_deleted_is_one_failure_and_not_another_once_it_is_gone() {
    let mut nodes = Nodes::running(2, 3);
    // Its container ends first, while Kubernetes still shows the pod unchanged.
    nodes.end(0, KILLED);
    nodes.look();
    nodes.daemon(1);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    nodes.lose_pod(0);
    nodes.look();
    nodes.pod(0);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(
        (nodes.restarts(), nodes.observed.durable.counted_restarts),
        (1, 1)
    );
    assert_eq!((nodes.stops, nodes.running_at(Generation(1))), (1, 2));
    assert_eq!(nodes.observed.durable.level, Some(RestartLevel::Pod));
}

#[test]
fn a_new_leader_acts_on_a_failure_after_all_were_stopped() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    for index in 0..2 {
        nodes.daemon(index);
        nodes.kubelet(index);
    }
    assert_eq!(nodes.running_at(Generation(1)), 2);
    nodes.tick(3_000);
    nodes.end(1, CRASHED);
    nodes.new_leader(2);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(nodes.observed.durable.counted_restarts, 2);
    assert_eq!(nodes.running_at(Generation(2)), 2);
}

#[test]
fn a_worker_that_kubelet_makes_wait_too_long_leads_to_a_recreation_that_is_not_counted_again() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(1);
    nodes.kubelet(1);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    nodes.tick(60_000);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(
        (nodes.recreations, nodes.observed.durable.counted_restarts),
        (1, 1)
    );
    nodes.observed.old_pods = 0;
    for index in 0..2 {
        nodes.pod(index);
    }
    nodes.settle();
    assert_eq!(nodes.running_at(Generation(2)), 2);
    assert!(matches!(
        nodes.announcements.last(),
        Some(Announcement::Restarted {
            level: RestartLevel::Recreate,
            ..
        })
    ));
}

#[test]
fn the_group_fails_once_its_restarts_are_used_up() {
    let mut nodes = Nodes::running(2, 1);
    nodes.end(0, CRASHED);
    nodes.settle();
    nodes.tick(60_001);
    nodes.end(1, CRASHED);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Failed);
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 1));
}

#[test]
fn work_that_is_done_is_not_run_again() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, Exit::default());
    nodes.settle();
    assert_eq!((nodes.restarts(), nodes.stops), (0, 0));
    nodes.end(1, CRASHED);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(nodes.stops, 0);
}

#[test]
fn the_replacement_of_a_lost_pod_joins_without_being_stopped() {
    let mut nodes = Nodes::running(3, 3);
    nodes.lose(2);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Stopping);
    nodes.tick(10_000);
    nodes.pod(2);
    nodes.settle();
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 2));
    assert_eq!(nodes.running_at(Generation(1)), 3);
}

#[test]
fn a_worker_that_began_before_the_restart_and_was_out_of_sight_is_restarted_too() {
    let mut nodes = Nodes::created(2, 3);
    nodes.pod(0);
    nodes.settle();
    nodes.pod(1);
    let (hidden, report) = nodes.live(1).unwrap();
    nodes.observed.reports.remove(&hidden);
    nodes.tick(5);
    nodes.end(0, CRASHED);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Stopping);
    nodes.observed.reports.insert(hidden, report);
    nodes.settle();
    assert_eq!((nodes.stops, nodes.running_at(Generation(1))), (1, 2));
}

#[test]
fn a_request_restarts_the_containers_and_counts_for_nothing() {
    let mut nodes = Nodes::running(2, 0);
    nodes.observed.manual_request = Some("now".to_owned());
    nodes.settle();
    assert_eq!(nodes.running_at(Generation(1)), 2);
    assert_eq!((nodes.stops, nodes.observed.durable.counted_restarts), (2, 0));
}

#[test]
fn a_new_leader_counts_once_what_happened_without_a_leader() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(0, CRASHED);
    nodes.new_leader(2);
    nodes.settle();
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 1));
    nodes.new_leader(3);
    nodes.settle();
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 1));
    assert_eq!(nodes.running_at(Generation(1)), 2);
}

#[test]
fn a_container_out_of_sight_of_a_new_leader_in_the_middle_of_a_restart_does_not_count_again() {
    let mut nodes = Nodes::running(3, 3);
    nodes.end(1, CRASHED);
    nodes.look();
    nodes.daemon(2);
    nodes.kubelet(1);
    nodes.kubelet(2);
    let hidden: Vec<_> = [0, 1].map(|index| (index, nodes.live(index).unwrap())).into();
    for (index, _) in &hidden {
        nodes.set_phase(*index, Phase::Unlinked);
    }
    nodes.new_leader(2);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Recovering);
    nodes.tick(15_000);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    for (_, (incarnation, report)) in hidden {
        nodes.observed.reports.insert(incarnation, report);
    }
    nodes.settle();
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 2));
    assert_eq!(nodes.running_at(Generation(1)), 3);
}

#[test]
fn a_restart_is_not_over_while_a_container_out_of_sight_waits_for_its_generation() {
    let mut nodes = Nodes::running(2, 3);
    nodes.end(1, CRASHED);
    nodes.look();
    nodes.daemon(0);
    nodes.look();
    nodes.kubelet(1);
    nodes.look();
    let (incarnation, report) = nodes.live(1).unwrap();
    nodes.set_phase(1, Phase::Unlinked);
    nodes.kubelet(0);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    nodes.new_leader(2);
    nodes.observed.reports.insert(incarnation, report);
    nodes.settle();
    assert_eq!(nodes.observed.durable.counted_restarts, 1);
    assert_eq!(nodes.running_at(Generation(1)), 2);
}

const WORKERS: u32 = 3;
const MAX_RESTARTS: u32 = 50;

#[derive(Debug, Clone)]
enum Event {
    Look,
    Daemon(u32),
    Kubelet(u32),
    Fail(u32),
    Pod(u32),
    Unlink(u32),
    Relink(u32),
    NewLeader,
    Confirm(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let index = 0..WORKERS;
    let event = prop_oneof![
        4 => Just(Event::Look),
        4 => index.clone().prop_map(Event::Daemon),
        4 => index.clone().prop_map(Event::Kubelet),
        2 => index.clone().prop_map(Event::Fail),
        1 => index.clone().prop_map(Event::Pod),
        1 => index.clone().prop_map(Event::Unlink),
        2 => index.prop_map(Event::Relink),
        1 => Just(Event::NewLeader),
        1 => any::<bool>().prop_map(Event::Confirm),
    ];
    proptest::collection::vec(event, 0..80)
}

struct Run {
    nodes: Nodes,
    epoch: u64,
    hidden: Vec<Option<(Phase, Generation)>>,
    injected: u32,
}

impl Run {
    fn new() -> Self {
        Self {
            nodes: Nodes::running(WORKERS, MAX_RESTARTS),
            epoch: 1,
            hidden: vec![None; WORKERS as usize],
            injected: 0,
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Look => self.nodes.look(),
            Event::Daemon(index) => self.nodes.daemon(index),
            Event::Kubelet(index) => self.nodes.kubelet(index),
            Event::Confirm(confirm) => self.nodes.confirm = confirm,
            Event::NewLeader => {
                self.epoch += 1;
                self.nodes.new_leader(self.epoch);
            }
            Event::Fail(index) => {
                self.relink(index);
                if self.nodes.live(index).is_some() {
                    self.injected += 1;
                    self.nodes.end(index, CRASHED);
                }
            }
            Event::Pod(index) => {
                self.injected += 1;
                self.hidden[index as usize] = None;
                self.nodes.lose(index);
                self.nodes.pod(index);
            }
            Event::Unlink(index) if self.hidden[index as usize].is_none() => {
                if let Some((_, report)) = self.nodes.live(index) {
                    self.hidden[index as usize] = Some((report.phase, report.generation));
                    self.nodes.set_phase(index, Phase::Unlinked);
                }
            }
            Event::Relink(index) => self.relink(index),
            Event::Unlink(_) => {}
        }
    }

    fn relink(&mut self, index: u32) {
        if let Some((phase, generation)) = self.hidden[index as usize].take()
            && let Some((incarnation, _)) = self.nodes.live(index)
        {
            self.nodes.report(&incarnation, index, phase, generation);
        }
    }

    fn heal(&mut self) {
        self.nodes.confirm = true;
        for index in 0..WORKERS {
            self.relink(index);
        }
        self.nodes.settle();
        self.nodes.observed.old_pods = 0;
        for index in 0..WORKERS {
            if self.nodes.observed.workers[&id(index)].pods.is_empty() {
                self.nodes.pod(index);
            }
        }
        self.nodes.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_all_containers_run_in_the_end_and_no_failure_counts_twice(events in events()) {
        let mut run = Run::new();
        for event in &events {
            run.apply(event);
        }
        run.heal();
        let nodes = &run.nodes;
        prop_assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
        prop_assert_eq!(nodes.running_at(nodes.coordinator.generation()), WORKERS);
        let durable = &nodes.observed.durable;
        prop_assert!(durable.counted_restarts <= run.injected, "{} restarts for {} failures", durable.counted_restarts, run.injected);
        prop_assert_eq!(durable.generation, nodes.coordinator.generation());
    }

    #[test]
    fn without_a_failure_no_container_is_stopped(events in events()) {
        let mut run = Run::new();
        for event in events.iter().filter(|event| !matches!(event, Event::Fail(_) | Event::Pod(_))) {
            run.apply(event);
        }
        run.heal();
        prop_assert_eq!(run.nodes.stops, 0);
        prop_assert_eq!(run.nodes.coordinator.generation(), Generation(0));
    }
}

#[test]
fn what_the_daemons_stopped_is_no_evidence_under_any_leader() {
    let mut nodes = Nodes::running(3, 3);
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(1);
    nodes.new_leader(2);
    nodes.settle();
    assert!(
        nodes
            .observed
            .reports
            .values()
            .any(|report| report.phase == Phase::Lost(KILLED))
    );
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 2));
}
