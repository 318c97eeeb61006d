//! The kinds of faults, and from which lists they are drawn.

/// One fault, or one thing that somebody does.
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
    // Workers and what they live in.
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
    /// A container ends, and the daemon of its node with it: if containerd does not require the
    /// plugin, the kubelet starts it again without its agent.
    ContainerKilledDaemonDies,
    // People.
    Request,
    RequestWorkerRestart,
    Suspend,
    Resume,
    EditMaxRestarts,
    EditTimeout,
    DeleteJob,
    DeleteJobSet,
    /// Of a RayCluster.
    Scale,
    /// Others come to a node, or leave it.
    Crowd,
    /// Somebody else writes the JobSet over and over.
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

pub(crate) const OF_PEOPLE: &[Fault] = &[
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
