//! Events, and the queue of those that are to happen.

pub(crate) mod fault;
pub(crate) mod request;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use lockstep_api::JobSet;
use lockstep_core::Plan;
use lockstep_core::gang::GroupPolicy;
use lockstep_node_daemon::plain;
use lockstep_node_daemon::worker::facts::Input;
use lockstep_node_daemon::worker::types::LinkId;
use lockstep_pod_agent::machine::{Exit, Status, Target};
use lockstep_proto::node::v1 as pb;

use crate::time::Time;

use fault::Fault;
use request::{Fate, GangRequest, PodRequest, Stepped, Written};

/// What a standby does by itself, or a launcher that starts ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Does {
    /// It has imported all.
    BecomesReady,
    /// It ends while it waits or imports.
    Dies,
    /// It goes on, once it is released.
    Confirms,
    /// It ends once it is released, and has run nothing of the worker.
    Refuses(Exit),
    /// It has not confirmed that it goes on as a rank.
    IsLate,
    /// The launcher starts this rank.
    StartsRank(u8),
    /// The process that is to be a rank calls the agent.
    Calls,
    /// The launcher has run for long enough to show which ranks it has.
    Settles,
    /// The agent starts standbys of ranks again.
    WarmsAgain,
}

/// Identifies a process among all that ever ran.
pub(crate) type ProcessId = u64;
/// Identifies a stream between a node daemon and a hub among all that ever existed.
pub(crate) type StreamId = u64;

/// Index of a node.
pub(crate) type NodeIndex = usize;
/// Index of a replica of the control plane.
pub(crate) type ReplicaIndex = usize;

/// A message from a node daemon to the hub.
#[derive(Debug, Clone)]
pub(crate) enum Up {
    Hello(Vec<pb::WorkerState>),
    Report(Vec<pb::WorkerState>),
}

/// Something that is going to happen. `life` numbers the processes that run in one place: an event
/// for one that has died is dropped.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    // The network between hubs and node daemons.
    Up {
        stream: StreamId,
        message: Up,
    },
    Down {
        stream: StreamId,
        message: pb::hub_message::Kind,
    },
    HubEndBreaks {
        stream: StreamId,
    },
    NodeEndBreaks {
        stream: StreamId,
    },
    /// Both ends give up a stream if they cannot reach each other.
    StreamTimeout {
        stream: StreamId,
    },

    // Replicas of the control plane.
    ReplicaStart {
        replica: ReplicaIndex,
    },
    LeaseTick {
        replica: ReplicaIndex,
        life: u32,
    },
    Watch {
        replica: ReplicaIndex,
        life: u32,
        kind: usize,
        upto: usize,
    },
    GroupStep {
        replica: ReplicaIndex,
        life: u32,
        due: Time,
    },
    /// A slow step is over.
    GroupStepped {
        replica: ReplicaIndex,
        life: u32,
        stepped: Box<Stepped>,
    },
    Reconcile {
        replica: ReplicaIndex,
        life: u32,
        due: Time,
    },
    GroupWriteArrives {
        replica: ReplicaIndex,
        life: u32,
        uid: String,
        patch: Box<serde_json::Value>,
        fate: Fate,
    },
    GroupWritten {
        replica: ReplicaIndex,
        life: u32,
        uid: String,
        written: Written,
    },
    PodRequest {
        replica: ReplicaIndex,
        life: u32,
        group: String,
        request: Box<PodRequest>,
        fate: Fate,
    },
    PodAnswered {
        replica: ReplicaIndex,
        life: u32,
        group: String,
        request: Box<PodRequest>,
        done: bool,
    },
    PlanArrives {
        replica: ReplicaIndex,
        life: u32,
        plan: Box<Plan>,
        base: Arc<JobSet>,
        fate: Fate,
    },
    PlanStatusArrives {
        replica: ReplicaIndex,
        life: u32,
        plan: Box<Plan>,
        base: Arc<JobSet>,
        fate: Fate,
    },
    Planned {
        replica: ReplicaIndex,
        life: u32,
        done: bool,
    },
    GangStep {
        replica: ReplicaIndex,
        life: u32,
        due: Time,
    },
    GangRequest {
        replica: ReplicaIndex,
        life: u32,
        request: Box<GangRequest>,
        fate: Fate,
    },
    GangAnswered {
        replica: ReplicaIndex,
        life: u32,
        known: Option<Arc<JobSet>>,
        made: Option<(String, Option<GroupPolicy>)>,
        then: Vec<GangRequest>,
        done: bool,
    },

    // Kubernetes' own controllers.
    Controllers,
    Kubelet {
        node: NodeIndex,
        life: u32,
        pod: String,
    },
    CreateContainer {
        node: NodeIndex,
        life: u32,
        pod: String,
    },
    KillPod {
        node: NodeIndex,
        life: u32,
        pod: String,
    },

    // Node daemons.
    DaemonStart {
        node: NodeIndex,
    },
    DaemonConnect {
        node: NodeIndex,
        daemon: u32,
    },
    DaemonSynchronize {
        node: NodeIndex,
        daemon: u32,
    },
    DaemonList {
        node: NodeIndex,
        daemon: u32,
    },
    DaemonInput {
        node: NodeIndex,
        daemon: u32,
        input: Input,
    },
    /// An input that concerns only workers without an agent.
    DaemonPlain {
        node: NodeIndex,
        daemon: u32,
        input: plain::facts::Input,
    },
    /// The daemon lists containers, since one has started or ended.
    DaemonListPlain {
        node: NodeIndex,
        daemon: u32,
    },
    /// The daemon's request to stop a container arrives.
    StopContainer {
        node: NodeIndex,
        daemon: u32,
        container: String,
    },
    NodeStart {
        node: NodeIndex,
        life: u32,
    },

    // Agents and their workers.
    AgentConnect {
        container: String,
    },
    AgentState {
        container: String,
        daemon: u32,
        link: LinkId,
        status: Box<Status>,
    },
    AgentTarget {
        container: String,
        link: LinkId,
        target: Box<Target>,
    },
    AgentTick {
        container: String,
    },
    ProcessEnds {
        container: String,
        process: ProcessId,
        exit: Exit,
    },
    /// A standby or a launcher does something by itself.
    Standby {
        container: String,
        process: ProcessId,
        does: Does,
    },
    /// The agent gets its worker's heartbeat, or finds that it is missing.
    Pulse {
        container: String,
        process: ProcessId,
    },
    /// The daemon kills, in one of several rounds, processes from before the agent asked for it.
    HostKill {
        container: String,
        before: Time,
        rounds: u8,
    },

    // The run.
    Fault {
        fault: Fault,
    },
    NextFault,
    /// Another client writes the JobSet again.
    Contend,
    /// A daemon lies about workers that are not on its node.
    Lie,
    /// A daemon lies about its own workers.
    LieOfOwn,
    /// The API server's store is copied, and a copy is restored.
    BackUp,
    Restore,
    Quiesce,
    Check,
}

/// Events by time; those of the same time in the order in which they were pushed.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The time of each event, its number among all that were pushed, and its place in `events`.
    heap: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// Events are large, so they stay in place while the heap is sorted.
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    pushed: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Time, event: Event) {
        self.pushed += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.heap.push(Reverse((at, self.pushed, place)));
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        let event = self.events[place].take()?;
        Some((at, event))
    }
}
