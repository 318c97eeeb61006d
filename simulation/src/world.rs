//! The whole simulated system: its parts, the queue of events, and the loop.

mod dispatch;
pub(crate) mod event;
mod faults;
mod invariants;
mod kubernetes;
mod network;
mod node;
mod replica;

use std::collections::BTreeMap;

use lockstep_proto::node::v1 as pb;

use crate::Outcome;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::time::{MS, SEC, Time, show};
use crate::world::event::{Event, Queue, StreamId};
use crate::world::faults::lies::Liar;
use crate::world::faults::restore::Backup;
use crate::world::invariants::Truth;
use crate::world::kubernetes::api_server::{ApiServer, Change};
use crate::world::kubernetes::controllers::Controllers;
use crate::world::network::{Network, Stream};
use crate::world::node::Node;
use crate::world::node::container::Container;
use crate::world::replica::{Lease, Replica};

/// No correct run has more events than this, and as many again for each 20 workers. A run that
/// reaches the limit does not end.
const MAX_EVENTS: u64 = 100_000;

/// One simulated world.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) queue: Queue,
    pub(crate) trace: Trace,
    pub(crate) scenario: Scenario,
    pub(crate) api: ApiServer,
    pub(crate) controllers: Controllers,
    pub(crate) replicas: Vec<Replica>,
    /// Error of the wall clock of each replica's machine, in nanoseconds.
    pub(crate) replica_clocks: Vec<i64>,
    pub(crate) lease: Lease,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gone_nodes: BTreeMap<usize, Time>,
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) network: Network,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) truth: Truth,
    /// The stream of the lying daemon.
    pub(crate) liar: Option<Liar>,
    /// True reports by the daemon that lies about its own workers, to be repeated later.
    pub(crate) past_reports: Vec<pb::WorkerState>,
    /// A copy of the API server's store, and when such a copy was restored.
    pub(crate) backup: Option<Backup>,
    pub(crate) restored_at: Option<Time>,
    /// Number of pods of other users on each node.
    pub(crate) taken: Vec<u64>,
    pub(crate) faults_on: bool,
    pub(crate) violation: Option<String>,
    pub(crate) finished: bool,
    /// The last id that was given out.
    pub(crate) last_id: u64,
    /// The length of the API server's log when watchers were last notified.
    pub(crate) notified_upto: usize,
}

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::of(&mut rng);
        scenario.choose_all(seed);
        Self::start(rng, scenario, trace)
    }

    /// A world with a group of this many workers that is neither a gang nor a RayCluster.
    pub(crate) fn large(seed: u64, workers: u32, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::of(&mut rng);
        scenario.choose_scopes(&mut Rng::new(!seed));
        scenario.enlarge(workers);
        Self::start(rng, scenario, trace)
    }

    fn start(rng: Rng, scenario: Scenario, trace: Trace) -> Self {
        let mut world = Self {
            rng,
            now: 0,
            queue: Queue::default(),
            trace,
            api: ApiServer::default(),
            controllers: Controllers::default(),
            replicas: (0..scenario.replicas).map(|_| Replica::default()).collect(),
            replica_clocks: vec![0; scenario.replicas],
            lease: Lease::default(),
            nodes: (0..scenario.nodes).map(|_| Node::new()).collect(),
            gone_nodes: BTreeMap::new(),
            containers: BTreeMap::new(),
            network: Network::default(),
            streams: BTreeMap::new(),
            truth: Truth::default(),
            liar: None,
            past_reports: Vec::new(),
            backup: None,
            restored_at: None,
            taken: vec![0; scenario.nodes],
            faults_on: true,
            violation: None,
            finished: false,
            last_id: 0,
            notified_upto: 0,
            scenario,
        };
        world.schedule_first_events();
        world
    }

    fn schedule_first_events(&mut self) {
        let scenario = self.scenario.clone();
        self.say(|| format!("{scenario:?}"));
        self.note_limits(&scenario.jobset);
        self.api.put_jobset(scenario.jobset);
        for replica in 0..self.replicas.len() {
            let at = self.rng.span(0, 100 * MS);
            self.queue.push(at, Event::ReplicaStart { replica });
        }
        for node in 0..self.nodes.len() {
            let late = if self.scenario.daemons_late { 2 * SEC } else { 0 };
            let at = late + self.rng.span(0, 200 * MS);
            self.queue.push(at, Event::DaemonStart { node });
        }
        for node in 0..self.nodes.len() {
            self.crowd(node);
        }
        if self.scenario.stranger {
            let at = self.rng.span(0, 2 * SEC);
            self.queue.push(at, Event::Lie);
        }
        if self.scenario.lies_of_own.is_some() {
            let at = self.rng.span(0, 5 * SEC);
            self.queue.push(at, Event::LieOfOwn);
        }
        if self.scenario.restores {
            let at = self.rng.span(SEC, 20 * SEC);
            self.queue.push(at, Event::BackUp);
        }
        self.queue.push(scenario.faults.0, Event::NextFault);
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.say(self.now, line);
    }

    /// Runs until the system has recovered for good, or an invariant is violated.
    pub(crate) fn run(mut self) -> Outcome {
        let mut events = 0;
        let (_, workers) = self.truth.size;
        let most = MAX_EVENTS * (1 + workers as u64 / 20);
        while let Some((at, event)) = self.queue.pop() {
            self.now = self.now.max(at);
            events += 1;
            self.dispatch(event);
            self.notify_watchers();
            if events > most {
                self.violation
                    .get_or_insert_with(|| "the run does not come to rest".to_owned());
            }
            if self.violation.is_some() || self.finished {
                break;
            }
        }
        Outcome {
            violation: self.violation,
            events,
            restarts: self.truth.restarts,
            worker_restarts: self.truth.worker_restarts,
            requested: self.truth.requested,
            stops: self.truth.stops,
            without_agent: self.truth.without_agent,
            from_standby: self.truth.from_standby,
            ranks_from_standby: self.truth.ranks_from_standby,
            trace: self.trace.into_lines(),
        }
    }

    /// Schedules who learns of new changes in the API server, and when.
    fn notify_watchers(&mut self) {
        let from = std::mem::replace(&mut self.notified_upto, self.api.log.len());
        if from == self.notified_upto {
            return;
        }
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].synced {
                self.schedule_watches(replica);
            }
        }
        let after = self.rng.span(2 * MS, 40 * MS);
        self.poke_controllers(after);
        let pods: Vec<(usize, String)> = self
            .api
            .log
            .iter()
            .skip(from)
            .filter_map(|change| match change {
                Change::Pod(uid, _) => Some(uid.clone()),
                _ => None,
            })
            .flat_map(|uid| {
                let bound = self.api.pods.get(&uid).and_then(|pod| pod.node);
                let local = (0..self.nodes.len()).find(|node| self.nodes[*node].local.contains_key(&uid));
                bound.or(local).map(|node| (node, uid))
            })
            .collect();
        for (node, uid) in pods {
            let after = self.rng.span(MS, 30 * MS);
            self.kubelet_later(node, &uid, after);
        }
    }
}

/// The history of a run. It stays empty unless the run is a replay.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// A trace that keeps its lines.
    #[must_use]
    pub(crate) fn recording() -> Self {
        Self {
            lines: Some(Vec::new()),
        }
    }

    /// Adds a line. The line is not formatted if the trace does not keep it.
    pub(crate) fn say(&mut self, now: Time, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{} {}", show(now), line()));
        }
    }

    /// All lines.
    #[must_use]
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
