//! Groups whose pods bring upstream's in-place restart agent (KEP-467): the attempts that the pods
//! report, and the decisions that follow.
//!
//! Each agent writes its attempt to an annotation of its pod. Once all pods of the set report the
//! same, that becomes `status.currentInPlaceRestartAttempt`, and the agents lift their barriers. If
//! they differ, `status.previousInPlaceRestartAttempt` becomes the highest minus one: the agents at
//! or below it restart.
//!
//! Unlike upstream, this does not wait for pods of replicatedJobs that have not been created, nor
//! for pods that have succeeded. So a JobSet with a start order, or with workers that end early, is
//! not blocked forever.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{JobSet, JobSetStatus, ReplicatedJob, annotations};

use crate::jobset::jobs::total_pods;

#[cfg(test)]
mod tests;

/// What upstream's in-place restart controller reads of a pod (KEP-467).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPod {
    /// The pod has failed; its replacement may already exist.
    pub failed: bool,
    /// The pod has succeeded.
    pub succeeded: bool,
    /// The attempt that the pod's agent reports, if any.
    pub attempt: Option<i32>,
    /// The highest restart count of its containers, by the kubelet.
    pub container_restarts: i32,
}

impl AgentPod {
    /// Reads a pod. An attempt that is not a number, or is negative, counts as not reported.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.into_iter().flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        Self {
            failed: phase == Some("Failed"),
            succeeded: phase == Some("Succeeded"),
            attempt: reported_attempt(&pod.metadata),
            container_restarts: containers
                .map(|container| container.restart_count)
                .max()
                .unwrap_or(0),
        }
    }
}

/// The attempt in the annotation that upstream's in-place restart agent writes.
#[must_use]
pub fn reported_attempt(pod: &ObjectMeta) -> Option<i32> {
    let attempt = pod
        .annotations
        .as_ref()?
        .get(annotations::IN_PLACE_RESTART_ATTEMPT)?;
    attempt.parse().ok().filter(|attempt| *attempt >= 0)
}

/// What the agents' reports mean for the JobSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing new.
    Wait,
    /// A pod has restarted more often than `maxRestarts` allows.
    GiveUp,
    /// All pods are at this attempt.
    Current(i32),
    /// Pods at this attempt or below must restart.
    Previous(i32),
}

/// True if the pods have upstream's agents: one that reports an attempt is enough.
pub(crate) fn reports(pods: &[AgentPod]) -> bool {
    pods.iter().any(|pod| pod.attempt.is_some())
}

/// True if the kubelet has restarted a container of a pod more often than `maxRestarts` allows.
pub(crate) fn restarted_too_often(jobset: &JobSet, pods: &[AgentPod]) -> bool {
    let most = jobset.max_restarts().max(0);
    pods.iter().any(|pod| pod.container_restarts > most)
}

/// Decides what the reports mean. `created` is true for replicatedJobs whose Jobs exist.
pub(crate) fn judge(
    jobset: &JobSet,
    status: &JobSetStatus,
    pods: &[AgentPod],
    created: impl Fn(&ReplicatedJob) -> bool,
) -> Verdict {
    let most = jobset.max_restarts().max(0);
    if restarted_too_often(jobset, pods) {
        return Verdict::GiveUp;
    }
    // A failed pod still exists beside its replacement, and may keep its old attempt forever.
    let attempts: Vec<i32> = pods
        .iter()
        .filter(|pod| !pod.failed && !pod.succeeded)
        .filter_map(|pod| pod.attempt)
        .collect();
    let Some(highest) = attempts.iter().copied().max() else {
        return Verdict::Wait;
    };
    let uncounted = status.restarts.saturating_sub(status.restarts_count_towards_max);
    if highest.saturating_sub(uncounted) > most {
        return Verdict::GiveUp;
    }
    let done = pods.iter().filter(|pod| pod.succeeded).count();
    let expected = total_pods(jobset, created).saturating_sub(i64::try_from(done).unwrap_or(i64::MAX));
    let complete = i64::try_from(attempts.len()).is_ok_and(|reported| reported >= expected);
    if complete && attempts.iter().all(|attempt| *attempt == highest) {
        return if status.current_in_place_restart_attempt == Some(highest) {
            Verdict::Wait
        } else {
            Verdict::Current(highest)
        };
    }
    if highest == 0 {
        return Verdict::Wait;
    }
    // It never goes back: the pod at the highest attempt may be missing only for the moment.
    let previous = highest - 1;
    if status
        .previous_in_place_restart_attempt
        .is_some_and(|known| previous <= known)
    {
        Verdict::Wait
    } else {
        Verdict::Previous(previous)
    }
}
