//! Between two attempts: the submitter is deleted, then Ray restarts, in the same pods or in a new
//! cluster.

use jiff::SignedDuration;
use lockstep_api::ray::{RayCluster, RayJobDeploymentStatus as Phase, RayJobRetryPolicy};
use lockstep_api::{InPlacePhase, JobSet, annotations};

use super::attempt::cluster_name;
use super::initialize::failed;
use super::{Draft, POLL, Ray};
use crate::jobset::plan::JobRef;

/// How long a restart in the same pods may take before a new cluster is created.
const RESTARTS_WITHIN: SignedDuration = SignedDuration::from_secs(180);

impl Draft<'_> {
    pub(super) fn retry(&mut self) {
        // A definition may drop this field. The attempt must not wait forever then.
        let now = self.now();
        self.status.retrying_since.get_or_insert(now);
        self.requeue(POLL);
        if self.delete_submitter() {
            return self.report_stuck_deletion();
        }
        match self
            .observed
            .cluster
            .as_deref()
            .filter(|cluster| !self.needs_another(cluster))
        {
            Some(cluster) => self.restart_ray(cluster),
            None if self.delete_cluster() => self.report_stuck_deletion(),
            None => {
                self.status.ray_cluster_name = cluster_name(self.job, self.status.num_retries);
                self.status.dashboard_url.clear();
                self.status.previous_session.clear();
                self.begin_attempt();
            }
        }
    }

    /// True if the next attempt needs a new cluster.
    fn needs_another(&self, cluster: &RayCluster) -> bool {
        self.job.spec.retry_policy == Some(RayJobRetryPolicy::NewCluster)
            || self.status.needs_new_cluster
            || cluster.is_deleting()
            || failed(cluster).is_some()
            || self.since(self.status.retrying_since.as_ref()) > RESTARTS_WITHIN
    }

    /// Restarts Ray in its pods, and waits for that.
    fn restart_ray(&mut self, cluster: &RayCluster) {
        let token = self.status.job_id.clone();
        let jobset = self.observed.jobset.as_deref();
        let before = &self.status.previous_session;
        let is_another = match self.ray {
            // The session of the previous attempt is not known. A Ray that knows the attempt is the
            // same run.
            Ray::Reached { session, job } if before.is_empty() => {
                let is_restarted = || jobset.is_some_and(|jobset| has_restarted(jobset, &token));
                job.is_none() && (!session.is_empty() || is_restarted())
            }
            // A Ray that knows the attempt is the same run, whatever its session.
            Ray::Reached { session, job } => session != before && job.is_none(),
            Ray::Unasked | Ray::Unreachable | Ray::Denied(_) | Ray::Refused(_) | Ray::Failing(_) => false,
        };
        if is_another && self.is_ready(cluster) {
            return self.begin_attempt();
        }
        // A head that has already restarted needs no other restart.
        let asked = |jobset: &JobSet| jobset.annotation(annotations::RESTART_REQUEST) == Some(token.as_str());
        if let Some(jobset) = jobset.filter(|jobset| !is_another && !asked(jobset)) {
            let jobset = JobRef {
                name: jobset.name().to_owned(),
                uid: jobset.uid_str().to_owned(),
            };
            self.plan.restart = Some((jobset, token));
        }
    }

    fn begin_attempt(&mut self) {
        self.status.retrying_since = None;
        self.reset_head_failures();
        self.clear_waiting();
        self.enter(Phase::Initializing);
    }
}

/// True if all workers have restarted since this token requested it.
fn has_restarted(jobset: &JobSet, token: &str) -> bool {
    let in_place = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    in_place.is_some_and(|in_place| {
        in_place.handled_manual_request.as_deref() == Some(token)
            && in_place.phase == Some(InPlacePhase::InSync)
    })
}
