//! Kinds of faults, and the lists that they are drawn from.

/// A fault, or an action of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    // Parts of Lockstep, the network, the API server.
    ReplicaCrash,
    LeaderCrash,
    LeaderFreeze,
    DaemonCrash,
    CutNodeFromHub,
    CutAllFromHub,
    CutReplicaFromApi,
    ApiDown,
    SlowNetwork,
    WatchLag,
    ClockStep,
    Touch,
    AgentLinkBreaks,
    // Workers, their pods and their nodes.
    WorkerFails,
    WorkerHangs,
    AllWorkersFail,
    AgentKilled,
    ContainerKilled,
    PodDeleted,
    NodeReboot,
    NodeGone,
    NodeCut,
    /// A worker fails, and the leader with it.
    WorkerFailsLeaderCrashes,
    /// A container and the daemon of its node end together. If containerd does not require the
    /// plugin, the kubelet starts the container again without its agent.
    ContainerKilledDaemonDies,
    // Users.
    Request,
    RequestWorkerRestart,
    Suspend,
    Resume,
    EditMaxRestarts,
    EditTimeout,
    DeleteJob,
    DeleteJobSet,
    /// The number of workers of a RayCluster changes.
    Scale,
    /// Pods of other users come to a node, or leave it.
    Crowd,
    /// Another client writes the JobSet over and over.
    Contention,
}

pub(crate) const OF_LOCKSTEP: &[Fault] = &[
    Fault::ReplicaCrash,
    Fault::LeaderCrash,
    Fault::LeaderCrash,
    Fault::LeaderFreeze,
    Fault::DaemonCrash,
    Fault::DaemonCrash,
    Fault::CutNodeFromHub,
    Fault::CutAllFromHub,
    Fault::CutReplicaFromApi,
    Fault::ApiDown,
    Fault::SlowNetwork,
    Fault::WatchLag,
    Fault::ClockStep,
    Fault::Touch,
    Fault::AgentLinkBreaks,
];

pub(crate) const OF_WORKERS: &[Fault] = &[
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerHangs,
    Fault::AllWorkersFail,
    Fault::AgentKilled,
    Fault::ContainerKilled,
    Fault::PodDeleted,
    Fault::PodDeleted,
    Fault::NodeReboot,
    Fault::NodeGone,
    Fault::NodeCut,
    Fault::WorkerFailsLeaderCrashes,
];

pub(crate) const OF_USERS: &[Fault] = &[
    Fault::Request,
    Fault::Request,
    Fault::RequestWorkerRestart,
    Fault::RequestWorkerRestart,
    Fault::Suspend,
    Fault::Resume,
    Fault::Resume,
    Fault::EditMaxRestarts,
    Fault::EditTimeout,
    Fault::DeleteJob,
    Fault::DeleteJobSet,
];
