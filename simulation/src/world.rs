//! The whole system in one place: its parts, the queue of what happens next, and the loop.

use std::collections::BTreeMap;

use lockstep_proto::node::v1 as pb;

use crate::agent::Container;
use crate::api_server::ApiServer;
use crate::controllers::Controllers;
use crate::event::{Event, Queue, StreamId};
use crate::invariants::Truth;
use crate::kubelet::Node;
use crate::lies::Liar;
use crate::network::{Network, Stream};
use crate::replica::{Lease, Replica};
use crate::restore::Backup;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::time::{MS, SEC, Time};
use crate::trace::Trace;

/// More events than any run that goes well, and as many again for each 20 workers: one that does not end is wrong.
const MAX_EVENTS: u64 = 100_000;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What must not have happened, if anything.
    pub violation: Option<String>,
    /// Events that happened.
    pub events: u64,
    /// Restarts that began.
    pub restarts: u32,
    /// Those of them that concerned one worker alone.
    pub worker_restarts: u32,
    /// Those of these that were asked for.
    pub requested: u32,
    /// Containers that were stopped for them.
    pub stops: u32,
    /// Those of them that had no agent, and should have had one.
    pub without_agent: u32,
    /// What happened, where it was to be kept.
    pub trace: Vec<String>,
}

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
    /// How wrong the wall clocks of the replicas' machines are, nanoseconds.
    pub(crate) replica_clocks: Vec<i64>,
    pub(crate) lease: Lease,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gone_nodes: BTreeMap<usize, Time>,
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) network: Network,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) truth: Truth,
    /// The stream of a daemon that lies.
    pub(crate) liar: Option<Liar>,
    /// What the daemon that lies about its own workers has truly said of them.
    pub(crate) once_true: Vec<pb::WorkerState>,
    /// A copy of the store, and when one was put back.
    pub(crate) copy: Option<Backup>,
    pub(crate) restored_at: Option<Time>,
    /// Pods that others have on each node.
    pub(crate) taken: Vec<u64>,
    pub(crate) faults_on: bool,
    pub(crate) violation: Option<String>,
    pub(crate) finished: bool,
    /// For ids.
    pub(crate) made: u64,
    /// How much of the log others have been told of.
    pub(crate) told: usize,
}

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::of(&mut rng);
        scenario.choose_all(seed);
        Self::begun(rng, scenario, trace)
    }

    /// A world with a group of so many workers, which is neither a gang nor a RayCluster.
    pub(crate) fn large(seed: u64, workers: u32) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::of(&mut rng);
        scenario.choose_scopes(&mut Rng::new(!seed));
        scenario.enlarge(workers);
        Self::begun(rng, scenario, Trace::default())
    }

    fn begun(rng: Rng, scenario: Scenario, trace: Trace) -> Self {
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
            once_true: Vec::new(),
            copy: None,
            restored_at: None,
            taken: vec![0; scenario.nodes],
            faults_on: true,
            violation: None,
            finished: false,
            made: 0,
            told: 0,
            scenario,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
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

    /// Runs until all is well, or something is not.
    pub(crate) fn run(mut self) -> Outcome {
        let mut events = 0;
        let (_, workers) = self.truth.size;
        let most = MAX_EVENTS * (1 + workers as u64 / 20);
        while let Some((at, event)) = self.queue.pop() {
            self.now = self.now.max(at);
            events += 1;
            self.happen(event);
            self.tell();
            if events > most {
                self.violation
                    .get_or_insert_with(|| "it never comes to rest".to_owned());
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
            trace: self.trace.into_lines(),
        }
    }

    /// What the API server has newly got, others see in time.
    fn tell(&mut self) {
        let from = std::mem::replace(&mut self.told, self.api.log.len());
        if from == self.told {
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
                crate::api_server::Change::Pod(uid, _) => Some(uid.clone()),
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

    /// A frozen replica does nothing before it thaws.
    fn thaws(&self, replica: usize, life: u32) -> Option<Time> {
        let until = self.replicas[replica].paused_until;
        (self.replica_lives(replica, life) && until > self.now).then_some(until)
    }

    fn frozen_until(&self, event: &Event) -> Option<Time> {
        match event {
            Event::LeaseTick { replica, life }
            | Event::Watch { replica, life, .. }
            | Event::GroupStep { replica, life, .. }
            | Event::GroupStepped { replica, life, .. }
            | Event::Reconcile { replica, life, .. }
            | Event::GroupWritten { replica, life, .. }
            | Event::Planned { replica, life, .. }
            | Event::GangStep { replica, life, .. }
            | Event::GangAnswered { replica, life, .. } => self.thaws(*replica, *life),
            Event::Up { stream, .. } => {
                let stream = self.streams.get(stream)?;
                self.thaws(stream.replica, stream.replica_life)
            }
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(until) = self.frozen_until(&event) {
            self.queue.push(until, event);
            return;
        }
        match event {
            Event::Up { stream, message } => self.up(stream, message),
            Event::Down { stream, message } => self.down(stream, message),
            Event::HubEndBreaks { stream } => self.hub_end_breaks(stream),
            Event::NodeEndBreaks { stream } => self.node_end_breaks(stream),
            Event::StreamTimeout { stream } => self.stream_timeout(stream),
            Event::ReplicaStart { replica } => self.replica_start(replica),
            Event::LeaseTick { replica, life } if self.replica_lives(replica, life) => {
                self.lease_tick(replica, life)
            }
            Event::Watch {
                replica,
                life,
                kind,
                upto,
            } if self.replica_lives(replica, life) => {
                self.watch(replica, life, kind, upto);
            }
            // The API server acts on what was sent, whoever lives.
            Event::GroupWriteArrives {
                replica,
                life,
                uid,
                patch,
                fate,
                ..
            } => {
                self.group_write_arrives((replica, life), uid, &patch, fate);
            }
            Event::PodRequest {
                replica,
                life,
                group,
                request,
                fate,
            } => self.pod_request((replica, life), group, request, fate),
            Event::PodAnswered {
                replica,
                life,
                group,
                request,
                done,
            } if self.replica_lives(replica, life) => {
                self.pod_answered(replica, &group, &request, done);
            }
            Event::PlanArrives {
                replica,
                life,
                plan,
                base,
                fate,
            } if self.replica_lives(replica, life) => {
                self.plan_arrives((replica, life), plan, base, fate);
            }
            Event::PlanStatusArrives {
                replica,
                life,
                plan,
                base,
                fate,
            } => {
                self.plan_status_arrives((replica, life), &plan, &base, fate);
            }
            Event::GroupStep { replica, life, due } if self.replica_lives(replica, life) => {
                self.group_event(replica, due)
            }
            Event::GroupStepped {
                replica,
                life,
                stepped,
            } if self.replica_lives(replica, life) => {
                self.group_stepped(replica, *stepped);
            }
            Event::GroupWritten {
                replica,
                life,
                uid,
                written,
            } if self.replica_lives(replica, life) => {
                self.group_written(replica, &uid, written);
            }
            Event::Reconcile { replica, life, due } if self.replica_lives(replica, life) => {
                self.reconcile(replica, due)
            }
            Event::Planned { replica, life, done } if self.replica_lives(replica, life) => {
                self.planned(replica, done)
            }
            Event::GangStep { replica, life, due } if self.replica_lives(replica, life) => {
                self.gang_step(replica, due)
            }
            Event::GangRequest {
                replica,
                life,
                request,
                fate,
            } => self.gang_request((replica, life), *request, fate),
            Event::GangAnswered {
                replica,
                life,
                known,
                made,
                then,
                done,
            } if self.replica_lives(replica, life) => {
                self.gang_answered(replica, known, made, then, done);
            }
            Event::Controllers => self.controllers(),
            Event::Kubelet { node, life, pod } if self.node_lives(node, life) => self.kubelet(node, &pod),
            Event::CreateContainer { node, life, pod } if self.node_lives(node, life) => {
                self.create_container(node, &pod)
            }
            Event::KillPod { node, life, pod } if self.node_lives(node, life) => self.kill_pod(node, &pod),
            Event::DaemonStart { node } => self.daemon_start(node),
            Event::DaemonConnect { node, daemon } => self.daemon_connect(node, daemon),
            Event::DaemonSynchronize { node, daemon } => self.daemon_synchronize(node, daemon),
            Event::DaemonList { node, daemon } => self.daemon_list(node, daemon),
            Event::DaemonInput { node, daemon, input } => self.daemon_input(node, daemon, input),
            Event::DaemonPlain { node, daemon, input } => self.daemon_plain(node, daemon, input),
            Event::DaemonNews { node, daemon } => self.daemon_news(node, daemon),
            Event::StopContainer {
                node,
                daemon,
                container,
            } => self.stop_container(node, daemon, container),
            Event::NodeStart { node, life } if self.nodes[node].life == life => self.node_start(node),
            Event::AgentConnect { container } => self.agent_connect(&container),
            Event::AgentState {
                container,
                daemon,
                link,
                status,
            } => self.agent_state(&container, daemon, link, &status),
            Event::AgentTarget {
                container,
                link,
                target,
            } => self.agent_target(&container, link, *target),
            Event::AgentTick { container } => self.agent_tick(&container),
            Event::ProcessEnds {
                container,
                process,
                exit,
            } => self.process_ended(&container, process, exit),
            Event::Pulse { container, process } => self.pulse(&container, process),
            Event::HostKill {
                container,
                before,
                rounds,
            } => self.host_kill(&container, before, rounds),
            Event::Fault { fault } => self.fault(fault),
            Event::NextFault => self.next_fault(),
            Event::Contend => self.contend(),
            Event::Lie => self.lie(),
            Event::LieOfOwn => self.lie_of_own(),
            Event::BackUp => self.back_up(),
            Event::Restore => self.restore(),
            Event::Quiesce => self.quiesce(),
            Event::Check => self.check(),
            // For processes that are gone.
            _ => {}
        }
    }
}
