//! What goes into the table of workers, and what comes out.

use super::types::{
    AgentState, BootNanos, ContainerId, Desired, Ended, Epoch, GroupUid, Incarnation, LinkId, Pod, PodUid,
    SandboxId, StaleOrder, Target, WorkerState,
};

/// A fact.
#[derive(Debug, Clone)]
pub enum Input {
    /// All pods with workers, and all their workers, with or without an agent, that are not known
    /// to have ended: a complete picture, consistent with `PodStarted` and the other single facts
    /// (NRI guarantees that).
    Synchronized {
        /// Every such sandbox.
        pods: Vec<(SandboxId, Pod)>,
        /// Workers.
        containers: Vec<LiveContainer>,
    },
    /// Workers that were made without the agent that they could have, as CRI shows while NRI is
    /// away. What NRI shows takes precedence.
    WithoutAgents(Vec<LiveContainer>),
    /// A listing made after [`super::state::Table::mark`] returned `mark`. It may miss what has
    /// appeared since.
    Listed {
        /// From [`super::state::Table::mark`].
        mark: u64,
        /// Sandboxes of pods with workers.
        pods: Vec<(SandboxId, Pod)>,
        /// Every container of such a pod that should be a worker; with its exit, and when, if it
        /// has ended.
        containers: Vec<ListedContainer>,
    },
    /// A sandbox of a pod with workers starts.
    PodStarted(SandboxId, Pod),
    /// A sandbox was removed.
    PodRemoved(SandboxId, PodUid),
    /// A supervised container is being created.
    Created {
        /// Its pod.
        pod: PodUid,
        /// Its id.
        id: ContainerId,
        /// Its name.
        name: String,
    },
    /// A container was removed.
    Removed(ContainerId),
    /// A container ended.
    Exited(ContainerId, Ended),
    /// An agent connected.
    Registered {
        /// The pod whose socket it used.
        pod: PodUid,
        /// Its container.
        id: ContainerId,
        /// Name of its container.
        name: String,
        /// The connection.
        link: LinkId,
        /// Its process id on the host.
        pid: i32,
    },
    /// An agent's State.
    State(ContainerId, LinkId, AgentState),
    /// A connection ended.
    LinkDown(ContainerId, LinkId),
    /// An attempt to stop a container was over a while ago: if the container ended, that was seen.
    StopOver(ContainerId),
    /// A hub has welcomed this node under this epoch, and the epoch is recorded.
    Welcomed(Epoch),
    /// Orders of the control plane.
    Desired(Vec<Desired>),
    /// The control plane no longer manages this group.
    Forget(GroupUid, Epoch),
}

/// A container that is not known to have ended, as NRI shows it, or CRI in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    /// Its pod.
    pub pod: PodUid,
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// True if it was made without the agent that it could have: this daemon, or NRI, was away.
    pub without_agent: bool,
}

/// One container of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    /// Its pod.
    pub pod: PodUid,
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// How and when it ended, if it has.
    pub ended: Option<Ended>,
}

/// An agent's request to kill, from the host, the processes beside it that it may not signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKill {
    /// Namespace of its pod.
    pub namespace: String,
    /// Its container.
    pub container: ContainerId,
    /// Its process id on the host.
    pub agent_pid: i32,
    /// Only processes started before this time are killed. `None` from an older agent: those that
    /// run now are killed.
    pub before: Option<BootNanos>,
}

/// What follows from a fact.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// States that changed.
    pub reports: Vec<WorkerState>,
    /// States in which only what the worker says of its work has changed.
    pub progress: Vec<WorkerState>,
    /// Targets to send.
    pub targets: Vec<(ContainerId, LinkId, Target)>,
    /// Containers whose processes must be killed from the host.
    pub kills: Vec<HostKill>,
    /// Containers whose processes are no longer to be killed from the host.
    pub spared: Vec<ContainerId>,
    /// Containers to stop from outside, because they have no agent.
    pub stops: Vec<ContainerId>,
    /// Orders that were refused.
    pub stale: Vec<StaleOrder>,
    /// Incarnations of dropped workers that were reported.
    pub gone: Vec<Incarnation>,
    /// Workers dropped from the table.
    pub dropped: Vec<ContainerId>,
    /// Pods new to the table.
    pub pods_known: Vec<PodUid>,
    /// Pods dropped from the table.
    pub pods_gone: Vec<PodUid>,
}
