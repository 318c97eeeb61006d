//! Heads that never become ready.
//!
//! A head that fails after its start is restarted in place, which the JobSet counts. Earlier
//! failures show only in its Job and pods: the kubelet rejects the pod, the node is removed, an
//! init container fails, or the agent is missing.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_api::ray::{RayCluster, RayJobDeploymentStatus as Phase, conditions};

use super::Draft;
use crate::jobset::owner::is_controlled_by;
use crate::jobset::pod::PodSummary;
use crate::ray::names::HEAD;

/// How many restarts of the cluster, and how many failures of its head, an attempt tolerates before
/// the head is ready.
const TOLERATED: i32 = 3;

/// How often the head has failed: failed pods, plus container restarts of the current pod. A pod
/// that is being deleted counts as failed already.
#[must_use]
pub fn head_failures<'a>(
    jobset: &JobSet,
    jobs: &[Arc<Job>],
    pods: impl IntoIterator<Item = &'a PodSummary>,
) -> i32 {
    let name = job_name(jobset.name(), HEAD, 0);
    let is_head = |job: &&Arc<Job>| {
        job.metadata.name.as_ref() == Some(&name) && is_controlled_by(&job.metadata, jobset.uid_str())
    };
    let Some(job) = jobs.iter().find(is_head) else {
        return 0;
    };
    let failed = job.status.as_ref().and_then(|status| status.failed);
    let own = pods
        .into_iter()
        .filter(|pod| pod.job_uid == job.metadata.uid && !pod.is_terminal() && !pod.deleting);
    let restarted = own.map(|pod| pod.agent.container_restarts).max();
    failed.unwrap_or(0).saturating_add(restarted.unwrap_or(0))
}

impl Draft<'_> {
    /// Why the cluster is given up, if its head has failed too often in this attempt to become
    /// ready.
    pub(super) fn never_starts(&self, cluster: &RayCluster) -> Option<String> {
        if cluster
            .status
            .as_ref()
            .is_some_and(|status| status.is_true(conditions::HEAD_POD_READY))
        {
            return None;
        }
        let since = |now: i32, before: Option<i32>| now.saturating_sub(before.unwrap_or(0));
        let restarts = since(self.restarts(), self.status.restarts_before);
        if restarts > TOLERATED {
            return Some(format!(
                "the cluster was restarted {restarts} times before the job could be submitted"
            ));
        }
        let failures = since(self.observed.head_failures, self.status.head_failures_before);
        (failures > TOLERATED)
            .then(|| format!("the head has failed {failures} times before the job could be submitted"))
    }

    /// Fails the attempt. The next one needs a new cluster.
    pub(super) fn give_head_up(&mut self, message: String) {
        self.attempt_failed("SubmissionFailed", message);
        self.status.needs_new_cluster = self.status.job_deployment_status == Some(Phase::Retrying);
    }

    /// Starts the counts of the new attempt: earlier failures of the head do not count.
    pub(super) fn reset_head_failures(&mut self) {
        self.status.restarts_before = Some(self.restarts());
        self.status.head_failures_before = Some(self.observed.head_failures).filter(|failures| *failures > 0);
        self.status.needs_new_cluster = false;
    }

    /// Restarts of the cluster's pods so far, whatever their cause.
    fn restarts(&self) -> i32 {
        let jobset = self.observed.jobset.as_ref();
        let status = jobset.and_then(|jobset| jobset.status.as_ref());
        status.map_or(0, |status| {
            let in_place = status.in_place_restart.as_ref();
            in_place
                .map_or(0, |in_place| in_place.restarts)
                .max(status.restarts_count_towards_max)
        })
    }
}
