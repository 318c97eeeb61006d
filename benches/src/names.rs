//! What things are called: the fleet, the hub and the baseline agree on it without talking. Lengths are those of the real thing.

use lockstep_core::restart::Incarnation;

/// UID of the only group.
pub(crate) const GROUP: &str = "5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Its JobSet.
pub(crate) const JOBSET: &str = "bench";
/// Its replicatedJob.
pub(crate) const STAGE: &str = "workers";
/// Its child Job.
pub(crate) const JOB: &str = "bench-workers-0";
/// The container of each pod.
pub(crate) const CONTAINER: &str = "worker";
/// Namespace of the pods.
pub(crate) const NAMESPACE: &str = "default";

/// Name of a node.
pub(crate) fn node(node: usize) -> String {
    format!("node-{node:05}")
}

/// UID of a worker's pod.
pub(crate) fn pod_uid(worker: usize) -> String {
    format!("7c9e6679-7425-40de-944b-{worker:012x}")
}

/// Name of a worker's pod.
pub(crate) fn pod(worker: usize) -> String {
    format!("{JOB}-{worker}-x7k2p")
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

/// Name of a worker in the design with Valkey: `<JobSet>-<replicatedJob>-<job index>-<completion index>`.
pub(crate) fn worker(worker: usize) -> String {
    format!("{JOB}-{worker}")
}
