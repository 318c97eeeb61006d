use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use proptest::prelude::*;

use super::*;
use crate::testing::{self, desired};
use crate::worker::types::{AgentPhase, Phase, UnixNanos};

const BASE: u64 = 1_000_000;
const CRASHED: Exit = Exit { code: 1, signal: 0 };
const KILLED: Exit = Exit { code: 137, signal: 9 };

fn pod() -> Pod {
    Pod {
        index: 4,
        ..testing::pod("p")
    }
}

fn incarnation(container: &str) -> Incarnation {
    Incarnation {
        pod: "p".into(),
        container: container.into(),
    }
}

/// Records in memory, which outlive the table.
#[derive(Default)]
struct Memory {
    records: RefCell<BTreeMap<PodUid, Records>>,
    full: Cell<bool>,
}

impl Journal for Memory {
    fn write(&self, pod: &PodUid, records: &Records) -> io::Result<()> {
        if self.full.get() {
            return Err(io::Error::other("no space left"));
        }
        self.records.borrow_mut().insert(pod.clone(), records.clone());
        Ok(())
    }

    fn erase(&self, pod: &PodUid) {
        self.records.borrow_mut().remove(pod);
    }
}

/// One pod on one node: its containers, and the daemon.
struct Node {
    table: Table,
    memory: Memory,
    containers: Vec<PlainContainer>,
    /// True while the pod is there.
    there: bool,
    now: i64,
    /// How far the wall clock is ahead of the boot clock.
    ahead: i64,
    restarts: u64,
    stops: Vec<ContainerId>,
    /// Requested, and not carried out yet.
    pending: Vec<ContainerId>,
    reports: BTreeMap<ContainerId, WorkerState>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self {
            table: Table::new(BASE, BTreeMap::new()),
            memory: Memory::default(),
            containers: Vec::new(),
            there: true,
            now: 1,
            ahead: 1_000_000,
            restarts: 0,
            stops: Vec::new(),
            pending: Vec::new(),
            reports: BTreeMap::new(),
        };
        node.start();
        node
    }

    /// A node whose worker runs at this generation.
    fn running_at(generation: u64) -> Self {
        let mut node = Self::new();
        node.list();
        node.adopt(generation);
        assert_eq!(node.phase("c0"), (Phase::Agent(AgentPhase::Running), generation));
        node
    }

    fn tell(&mut self, input: Input) -> Effects {
        self.now += 1;
        let now = Moment {
            wall: self.wall(),
            boot: BootNanos(self.now.unsigned_abs()),
        };
        let effects = self.table.apply(input, now, &self.memory);
        self.stops.extend(effects.stops.clone());
        self.pending.extend(effects.stops.clone());
        for report in &effects.reports {
            let id = report.incarnation.container.clone();
            let before = self.reports.insert(id, report.clone());
            assert!(before.is_none_or(|before| before.revision < report.revision));
        }
        effects
    }

    /// The control plane gives the newest container, which has no generation, this one.
    fn adopt(&mut self, generation: u64) {
        let newest = self.containers.last().unwrap().id.as_str().to_owned();
        let fresh = [incarnation(&newest)].into();
        self.tell(Input::Desired(vec![Desired {
            fresh,
            ..desired(1, generation)
        }]));
    }

    /// The kubelet starts the next container.
    fn start(&mut self) {
        let attempt = u32::try_from(self.containers.len()).unwrap();
        self.now += 1;
        self.containers.push(PlainContainer {
            pod: "p".into(),
            name: "worker".to_owned(),
            id: format!("c{attempt}").into(),
            attempt,
            created: self.wall(),
            ended: None,
        });
    }

    fn list(&mut self) {
        let input = Input::Listed {
            pods: self.there.then(pod).into_iter().collect(),
            containers: if self.there {
                self.containers.clone()
            } else {
                Vec::new()
            },
        };
        self.tell(input);
    }

    /// The newest container ends. containerd reports that, or its event is lost.
    fn end(&mut self, exit: Exit, event: bool) {
        self.now += 1;
        let ended = Ended {
            exit,
            at: self.wall(),
        };
        let newest = self.containers.last_mut().unwrap();
        if newest.ended.is_none() {
            newest.ended = Some(ended);
            let id = newest.id.clone();
            if event {
                self.tell(Input::Exited(id, ended));
            }
        }
    }

    /// The time by the wall clock.
    fn wall(&self) -> UnixNanos {
        UnixNanos(self.now + self.ahead)
    }

    fn runs(&self) -> bool {
        self.containers.last().unwrap().ended.is_none()
    }

    /// Carries out the requested stops.
    fn stop(&mut self, event: bool) {
        for id in std::mem::take(&mut self.pending) {
            if self.runs() && self.containers.last().unwrap().id == id {
                self.end(KILLED, event);
            }
        }
    }

    /// The daemon is killed, and another one starts.
    fn restart(&mut self) {
        self.restarts += 1;
        let records = self.memory.records.borrow().clone();
        self.table = Table::new(BASE + self.restarts * 1_000, records);
        self.pending.clear();
    }

    fn phase(&self, container: &str) -> (Phase, u64) {
        let report = &self.reports[&container.into()];
        (report.phase, report.generation.0)
    }
}

#[test]
fn the_first_container_has_no_generation_until_it_is_named() {
    let mut node = Node::new();
    node.list();
    assert_eq!(node.phase("c0"), (Phase::Agent(AgentPhase::Fresh), 0));
    node.tell(Input::Desired(vec![desired(1, 3)]));
    assert_eq!(node.phase("c0"), (Phase::Agent(AgentPhase::Fresh), 0));
    node.adopt(3);
    assert_eq!(node.phase("c0"), (Phase::Agent(AgentPhase::Running), 3));
    assert!(node.stops.is_empty());
    assert_eq!(node.reports[&"c0".into()].counted_restarts, 3);
    assert_eq!(node.reports[&"c0".into()].epoch, Epoch(1));
}

#[test]
fn a_container_of_an_older_generation_is_recorded_then_stopped_and_the_next_has_the_new_one() {
    let mut node = Node::running_at(0);
    node.tell(Input::Desired(vec![desired(1, 1)]));
    assert_eq!(node.stops, ["c0".into()]);
    let record = node.memory.records.borrow()[&"p".into()]["worker"].clone();
    assert_eq!(
        (record.generation, record.next),
        (Generation(0), Some(Generation(1)))
    );
    node.stop(true);
    assert_eq!(node.phase("c0"), (Phase::Lost(KILLED), 0));
    node.start();
    node.list();
    assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Running), 1));
    node.tell(Input::Desired(vec![desired(1, 1)]));
    assert_eq!(node.stops.len(), 1);
}

#[test]
fn the_container_after_one_that_failed_is_not_stopped_for_that_failure() {
    for kubelet_is_first in [false, true] {
        let mut node = Node::running_at(0);
        node.end(CRASHED, true);
        assert_eq!(node.phase("c0"), (Phase::Lost(CRASHED), 0));
        if kubelet_is_first {
            node.start();
            node.list();
            assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Fresh), 0));
        }
        node.tell(Input::Desired(vec![desired(1, 1)]));
        if !kubelet_is_first {
            node.start();
            node.list();
        }
        assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Running), 1));
        assert!(node.stops.is_empty());
    }
}

#[test]
fn a_clock_that_is_set_back_makes_no_container_older_than_the_order_before_it() {
    for restart in [false, true] {
        let mut node = Node::running_at(0);
        node.end(CRASHED, true);
        node.tell(Input::Desired(vec![desired(1, 1)]));
        // The next order comes before the kubelet has started it again.
        node.tell(Input::Desired(vec![desired(1, 2)]));
        node.ahead -= 500_000;
        if restart {
            node.restart();
            node.tell(Input::Desired(vec![desired(1, 2)]));
        }
        node.start();
        node.list();
        assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Running), 2));
        assert!(node.stops.is_empty());
    }
}

#[test]
fn a_container_that_fails_at_the_present_generation_is_followed_by_one_without() {
    let mut node = Node::running_at(1);
    node.end(CRASHED, true);
    node.start();
    node.list();
    assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Fresh), 0));
    node.adopt(1);
    assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Running), 1));
}

#[test]
fn a_container_that_is_named_stale_is_stopped_once() {
    let mut node = Node::new();
    node.list();
    let stale = [incarnation("c0")].into();
    let order = Desired {
        stale,
        ..desired(1, 2)
    };
    node.tell(Input::Desired(vec![order.clone()]));
    node.tell(Input::Desired(vec![order]));
    assert_eq!(node.stops, ["c0".into()]);
    node.stop(true);
    node.start();
    node.list();
    assert_eq!(node.phase("c1"), (Phase::Agent(AgentPhase::Running), 2));
}

#[test]
fn a_daemon_that_was_killed_in_the_middle_stops_nothing_twice() {
    // Before the stop was carried out, after it, and after the next container had started.
    for reached in 0..3 {
        let mut node = Node::running_at(0);
        node.tell(Input::Desired(vec![desired(1, 1)]));
        if reached > 0 {
            node.stop(false);
        }
        if reached > 1 {
            node.start();
        }
        node.restart();
        node.list();
        node.tell(Input::Desired(vec![desired(1, 1)]));
        node.stop(true);
        if reached < 2 {
            node.start();
            node.list();
        }
        assert_eq!(
            node.phase("c1"),
            (Phase::Agent(AgentPhase::Running), 1),
            "{reached}"
        );
        let stopped: BTreeSet<_> = node.stops.iter().collect();
        assert_eq!(stopped, BTreeSet::from([&"c0".into()]), "{reached}");
    }
}

#[test]
fn nothing_is_stopped_that_could_not_be_recorded() {
    let mut node = Node::running_at(0);
    node.memory.full.set(true);
    let effects = node.tell(Input::Desired(vec![desired(1, 1)]));
    assert_eq!((effects.unwritten.len(), node.stops.len()), (1, 0));
    assert_eq!(node.phase("c0"), (Phase::Agent(AgentPhase::Running), 0));
    node.memory.full.set(false);
    node.list();
    assert_eq!(node.stops, ["c0".into()]);
}

#[test]
fn a_stop_that_changed_nothing_is_tried_again() {
    let mut node = Node::running_at(0);
    node.tell(Input::Desired(vec![desired(1, 1)]));
    node.tell(Input::StopOver("c0".into()));
    assert_eq!(node.stops.len(), 2);
    node.stop(true);
    node.tell(Input::StopOver("c0".into()));
    assert_eq!(node.stops.len(), 2);
}

#[test]
fn former_leaders_are_not_obeyed_even_by_a_new_daemon() {
    let mut node = Node::running_at(0);
    node.tell(Input::Desired(vec![desired(5, 0)]));
    node.restart();
    node.list();
    let effects = node.tell(Input::Desired(vec![desired(4, 1)]));
    let stale = StaleOrder {
        group: "g".into(),
        epoch: Epoch(4),
        highest: Epoch(5),
    };
    assert_eq!(effects.stale, [stale]);
    assert_eq!(effects.reports[0].epoch, Epoch(5));
    assert!(node.stops.is_empty());
}

#[test]
fn an_end_that_overtakes_its_listing_counts() {
    let mut node = Node::new();
    let ended = Ended {
        exit: CRASHED,
        at: UnixNanos(7),
    };
    node.tell(Input::Exited("c0".into(), ended));
    node.list();
    assert_eq!(node.phase("c0").0, Phase::Lost(CRASHED));
    let mut node = Node::running_at(0);
    node.containers.clear();
    node.list();
    assert_eq!(node.phase("c0"), (Phase::Lost(Exit::UNKNOWN), 0));
}

#[test]
fn the_records_of_a_pod_that_is_gone_are_removed() {
    let mut node = Node::running_at(0);
    node.there = false;
    node.list();
    assert!(node.memory.records.borrow().is_empty());
    assert_eq!(node.table.snapshot().count(), 0);
    assert!(node.table.groups.is_empty());
    let records = Node::running_at(0).memory.records.take();
    let mut node = Node::new();
    node.memory.records.replace(records);
    node.restart();
    node.there = false;
    node.list();
    assert!(node.memory.records.borrow().is_empty());
}

#[derive(Debug, Clone)]
enum Event {
    List,
    /// The container crashes, and containerd reports that or not.
    Crash(bool),
    Kubelet,
    Stop(bool),
    Order,
    Repeat,
    Adopt,
    Restart,
    Full(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => Just(Event::List),
        2 => any::<bool>().prop_map(Event::Crash),
        3 => Just(Event::Kubelet),
        3 => any::<bool>().prop_map(Event::Stop),
        2 => Just(Event::Order),
        1 => Just(Event::Repeat),
        2 => Just(Event::Adopt),
        1 => Just(Event::Restart),
        1 => any::<bool>().prop_map(Event::Full),
    ];
    proptest::collection::vec(event, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(500), ..ProptestConfig::default() })]

    #[test]
    fn every_container_is_stopped_for_a_later_generation_only_and_all_reach_it(events in events()) {
        let mut node = Node::running_at(0);
        let mut generation = 0;
        // The generation that the daemon received while it knew its containers and could write.
        let (mut received, mut listed, mut ordered) = (0, true, true);
        // The generation received when a container started: it is never stopped for that.
        let mut born: BTreeMap<ContainerId, u64> = BTreeMap::new();
        for event in events {
            let before = node.stops.len();
            match event.clone() {
                Event::List => {
                    node.list();
                    listed |= !node.memory.full.get();
                }
                Event::Crash(event) => node.end(CRASHED, event),
                Event::Kubelet if !node.runs() => {
                    node.start();
                    born.insert(node.containers.last().unwrap().id.clone(), received);
                }
                Event::Kubelet => {}
                Event::Stop(event) => node.stop(event),
                Event::Order => {
                    generation += 1;
                    node.tell(Input::Desired(vec![desired(1, generation)]));
                }
                Event::Repeat => drop(node.tell(Input::Desired(vec![desired(1, generation)]))),
                Event::Adopt => node.adopt(generation),
                Event::Restart => {
                    node.restart();
                    (listed, ordered) = (false, false);
                }
                Event::Full(full) => {
                    node.memory.full.set(full);
                    listed &= !full;
                }
            }
            ordered |= matches!(event, Event::Order | Event::Repeat | Event::Adopt);
            if listed && ordered {
                received = generation;
            }
            for id in &node.stops[before..] {
                prop_assert!(born.get(id).is_none_or(|born| *born < generation), "{id} stopped for {generation}");
            }
        }
        node.memory.full.set(false);
        for _ in 0..4 {
            node.list();
            node.tell(Input::Desired(vec![desired(1, generation)]));
            node.stop(false);
            if !node.runs() {
                node.start();
            }
            node.list();
            if node.reports[&node.containers.last().unwrap().id].phase == Phase::Agent(AgentPhase::Fresh) {
                node.adopt(generation);
            }
        }
        let newest = node.containers.last().unwrap().id.clone();
        prop_assert_eq!(node.phase(newest.as_str()), (Phase::Agent(AgentPhase::Running), generation));
        prop_assert!(node.pending.is_empty());
    }
}
