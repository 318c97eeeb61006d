//! Names that the fleet, the hub and the baseline agree on. Their lengths are realistic.

use lockstep_core::restart::Incarnation;

/// The replicatedJob of each JobSet.
pub(crate) const STAGE: &str = "workers";
/// UID of the daemons' ServiceAccount.
pub(crate) const ACCOUNT: &str = "5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// The container of each pod.
pub(crate) const CONTAINER: &str = "worker";
/// Namespace of the pods.
pub(crate) const NAMESPACE: &str = "default";

/// UID of a group.
pub(crate) fn group(group: usize) -> String {
    format!("5f0c0f5e-8d3a-4d6b-9c55-{group:012x}")
}

/// Name of its JobSet.
pub(crate) fn jobset(group: usize) -> String {
    format!("bench-{group}")
}

/// Name of its child Job.
pub(crate) fn job(group: usize) -> String {
    format!("bench-{group}-{STAGE}-0")
}

/// Name of a node.
pub(crate) fn node(node: usize) -> String {
    format!("node-{node:05}")
}

/// UID of a worker's pod.
pub(crate) fn pod_uid(worker: usize) -> String {
    format!("7c9e6679-7425-40de-944b-{worker:012x}")
}

/// Name of a pod: by its group and completion index.
pub(crate) fn pod(group: usize, index: usize) -> String {
    format!("{}-{index}-x7k2p", job(group))
}

/// Id of a worker's container.
pub(crate) fn container_id(worker: usize) -> String {
    format!("{worker:064x}")
}

/// The only incarnation of a worker.
pub(crate) fn incarnation(worker: usize) -> Incarnation {
    Incarnation {
        pod_uid: pod_uid(worker),
        container_id: container_id(worker),
    }
}

/// Name of a worker in the design with Valkey: `<JobSet>-<replicatedJob>-<job index>-<completion
/// index>`.
pub(crate) fn worker(worker: usize) -> String {
    format!("{}-{worker}", job(0))
}
