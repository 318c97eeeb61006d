//! The daemon's own types for workers: no wire formats, and nothing that does I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use lockstep_protocol::pods::Standby;
pub use lockstep_protocol::progress::Progress;
pub use lockstep_protocol::standby::{Standbys, Starts};
pub use lockstep_protocol::{BootNanos, Epoch, Exit, Generation, Heartbeat, TerminalCodes, UnixNanos};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(String);

        impl $name {
            /// The id as it is on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(value: &str) -> Self {
                Self(value.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(value: String) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// UID of a JobSet.
    GroupUid
);
id!(
    /// UID of a pod.
    PodUid
);
id!(
    /// Id of one pod sandbox. A pod gets another one if its sandbox dies.
    SandboxId
);
id!(
    /// containerd's id of a container.
    ContainerId
);

/// One connection of an agent to this daemon process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// A pod with at least one worker container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// UID.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The JobSet.
    pub group: GroupUid,
    /// The child Job.
    pub job: String,
    /// Completion index within the Job.
    pub index: u32,
    /// Names of the containers that are workers.
    pub supervised: BTreeSet<String>,
    /// True if the kubelet starts a stopped container of this pod again, as the control plane says.
    pub started_again: bool,
    /// What its agents start ahead, for the next attempts of their workers.
    pub standby: Standby,
}

/// The end of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub exit: Exit,
    /// When it ended.
    pub at: UnixNanos,
}

/// State of a worker, as its agent reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentPhase {
    /// Never started.
    Fresh,
    /// Being started.
    Starting,
    /// Running.
    Running,
    /// Signalled for a restart.
    Stopping,
    /// Stopped, waits for a release.
    Parked,
    /// Exited by itself, not 0.
    Exited(Exit),
    /// Exited 0 by itself.
    Done(Exit),
}

/// Phase of an incarnation as it is reported to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// As its agent reports it.
    Agent(AgentPhase),
    /// No link to the agent now. The exit is the last one known, if any.
    Unlinked(Option<Exit>),
    /// The container is gone.
    Lost(Exit),
}

impl Phase {
    /// The exit that goes with the phase.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        match self {
            Self::Agent(AgentPhase::Exited(exit) | AgentPhase::Done(exit)) | Self::Lost(exit) => Some(*exit),
            Self::Unlinked(exit) => *exit,
            Self::Agent(_) => None,
        }
    }

    /// The name used in logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agent(AgentPhase::Fresh) => "Fresh",
            Self::Agent(AgentPhase::Starting) => "Starting",
            Self::Agent(AgentPhase::Running) => "Running",
            Self::Agent(AgentPhase::Stopping) => "Stopping",
            Self::Agent(AgentPhase::Parked) => "Parked",
            Self::Agent(AgentPhase::Exited(_)) => "Exited",
            Self::Agent(AgentPhase::Done(_)) => "Done",
            Self::Unlinked(_) => "Unlinked",
            Self::Lost(_) => "Lost",
        }
    }
}

/// An agent's State message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentState {
    /// State of the worker.
    pub phase: AgentPhase,
    /// The generation that it runs or parks at.
    pub generation: Generation,
    /// Highest epoch that it claims to have seen. It is not passed on: any process may be at the
    /// other end.
    pub epoch: Epoch,
    /// Highest count of restarts that the agent has seen.
    pub counted_restarts: u64,
    /// Grows over the life of the agent.
    pub revision: u64,
    /// When the phase was entered.
    pub since: UnixNanos,
    /// For people.
    pub detail: String,
    /// Set while the agent may not signal some of its processes.
    pub needs_host_kill: bool,
    /// With `needs_host_kill`: only processes started before this time are to be killed. `None`
    /// from an older agent.
    pub host_kill_before: Option<BootNanos>,
    /// Of a running worker.
    pub heartbeat: Heartbeat,
    /// Of the current attempt. `None` before the first start, and without standbys.
    pub starts: Option<Starts>,
    /// `None` if the worker asks for none.
    pub standbys: Option<Standbys>,
    /// What the worker says of its work in its attempt.
    pub progress: Progress,
}

/// One container instance of a worker, as the control plane knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation {
    /// The pod.
    pub pod: PodUid,
    /// The container.
    pub container: ContainerId,
}

/// What is reported of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerState {
    /// The JobSet.
    pub group: GroupUid,
    /// The child Job.
    pub job: String,
    /// Completion index.
    pub index: u32,
    /// Name of the container.
    pub container: String,
    /// The instance.
    pub incarnation: Incarnation,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod_name: String,
    /// Its state.
    pub phase: Phase,
    /// The generation that it runs or parks at.
    pub generation: Generation,
    /// Highest epoch under which a hub has welcomed this node, or has sent an order for this group.
    pub epoch: Epoch,
    /// Highest count of restarts that the agent has seen.
    pub counted_restarts: u64,
    /// Orders the reports of one incarnation, across restarts of the daemon too.
    pub revision: u64,
    /// When the phase was entered.
    pub since: UnixNanos,
    /// For people.
    pub detail: String,
    /// Of a running worker.
    pub heartbeat: Heartbeat,
    /// For a container that ended, was made without its agent and was never stopped for a restart:
    /// the generation at which its group was released while it ran.
    pub released_generation: Option<Generation>,
    /// Of the current attempt. `None` before the first start, and without standbys.
    pub starts: Option<Starts>,
    /// `None` if the worker asks for none, or starts no more.
    pub standbys: Option<Standbys>,
    /// What the worker says of its work in its attempt.
    pub progress: Progress,
}

impl WorkerState {
    /// True if this differs from an earlier state in what the worker says of its work, and in
    /// nothing else.
    #[must_use]
    pub fn is_mere_progress(&self, since: &Self) -> bool {
        self.progress != since.progress
            && *self
                == Self {
                    progress: self.progress.clone(),
                    ..since.clone()
                }
    }
}

/// Which exit codes are terminal, and for which workers. See [`TerminalCodes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalRule {
    /// Every code but `codes`, and never 0.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
    /// Container that it is limited to.
    pub container: Option<String>,
    /// Child Job that it is limited to.
    pub job: Option<String>,
}

/// What the control plane wants of one JobSet's workers on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// The JobSet.
    pub group: GroupUid,
    /// Its namespace; `None` from an older control plane.
    pub namespace: Option<String>,
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The generation that every worker should have.
    pub generation: Generation,
    /// Counted restarts so far.
    pub counted_restarts: u64,
    /// Workers parked at `generation` start.
    pub release: bool,
    /// Incarnations that may start for the first time.
    pub fresh: BTreeSet<Incarnation>,
    /// Incarnations without an agent and without a generation that are restarted for this one.
    pub stale: BTreeSet<Incarnation>,
    /// Incarnations under a worker restart, and their own targets.
    pub worker_restarts: BTreeMap<Incarnation, WorkerRestart>,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u32,
    /// Which exit codes are terminal.
    pub terminal_rules: Vec<TerminalRule>,
    /// Longest time between two heartbeats of a worker, milliseconds; 0: none are required.
    pub heartbeat_timeout_ms: u32,
    /// How long a started worker may take until its first heartbeat, milliseconds; 0: no limit.
    pub ready_timeout_ms: u32,
}

impl Desired {
    /// True if this pod is one of the JobSet's. Any creator of a pod may write its labels, so the
    /// namespace has to match, too.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        let namespace = self.namespace.as_ref();
        pod.group == self.group && namespace.is_none_or(|namespace| *namespace == pod.namespace)
    }
}

/// What the control plane wants of a worker under a worker restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerRestart {
    /// The generation that it should have.
    pub generation: Generation,
    /// Start if parked at `generation`.
    pub release: bool,
}

/// What is sent to one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The generation that the worker should have.
    pub generation: Generation,
    /// Counted restarts so far.
    pub counted_restarts: u64,
    /// Start if parked at `generation`.
    pub release: bool,
    /// Start if fresh.
    pub start_fresh: bool,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u32,
    /// The terminal exit codes, of each rule that applies to this worker.
    pub terminal_codes: Vec<TerminalCodes>,
    /// Longest time between two heartbeats of the worker, milliseconds; 0: none are required.
    pub heartbeat_timeout_ms: u32,
    /// How long a started worker may take until its first heartbeat, milliseconds; 0: no limit.
    pub ready_timeout_ms: u32,
}

/// An order of a former leader, which was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleOrder {
    /// The JobSet.
    pub group: GroupUid,
    /// The order's epoch.
    pub epoch: Epoch,
    /// The highest epoch seen.
    pub highest: Epoch,
}
