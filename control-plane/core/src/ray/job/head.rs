//! Heads that do not come up.
//!
//! A head that fails once it was started is restarted in place, which the JobSet counts. Of what
//! becomes of it before that only its Job and its pods tell: the kubelet would not have the pod,
//! its node was taken away, an init container fails, or there was no agent in front of it.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_api::ray::{RayCluster, RayJobDeploymentStatus as Phase, conditions};

use super::Draft;
use crate::jobset::owner::is_controlled_by;
use crate::jobset::pod::PodSummary;
use crate::ray::names::HEAD;

/// Restarts of the cluster in an attempt, before its head was up, that are forgiven; and failures
/// of its head.
const FORGIVEN: i32 = 3;

/// How often pods of a cluster's head have failed, and the kubelet has started a container of the
/// present one again. A pod that is on its way out is among the failed ones already.
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
    /// Why a cluster whose head has not come up, however often that was tried in this attempt, is
    /// given up.
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
        if restarts > FORGIVEN {
            return Some(format!(
                "the cluster was restarted {restarts} times before the job could be submitted"
            ));
        }
        let failures = since(self.observed.head_failures, self.status.head_failures_before);
        (failures > FORGIVEN)
            .then(|| format!("the head has failed {failures} times before the job could be submitted"))
    }

    /// The attempt has failed, and another one would on this cluster.
    pub(super) fn give_head_up(&mut self, message: String) {
        self.attempt_failed("SubmissionFailed", message);
        self.status.needs_new_cluster = self.status.job_deployment_status == Some(Phase::Retrying);
    }

    /// Has the head's failures so far count for nothing in the attempt that begins.
    pub(super) fn forgive(&mut self) {
        self.status.restarts_before = Some(self.restarts());
        self.status.head_failures_before = Some(self.observed.head_failures).filter(|failures| *failures > 0);
        self.status.needs_new_cluster = false;
    }

    /// Restarts of the cluster's pods so far, by whatever cause.
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
