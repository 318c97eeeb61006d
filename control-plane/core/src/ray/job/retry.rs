//! Between two attempts: the submitter goes, then Ray is restarted, in the same pods or in a new
//! cluster.

use jiff::SignedDuration;
use lockstep_api::ray::{RayCluster, RayJobDeploymentStatus as Phase, RayJobRetryPolicy};
use lockstep_api::{InPlacePhase, JobSet, annotations};

use super::attempt::cluster_name;
use super::initialize::failed;
use super::{Draft, POLL, Ray};
use crate::jobset::plan::JobRef;

/// How long a start in the same pods may take before a new cluster is made.
const PATIENCE: SignedDuration = SignedDuration::from_secs(180);

impl Draft<'_> {
    pub(super) fn retry(&mut self) {
        // A definition that drops it must not have the attempt wait for ever.
        let now = self.now();
        self.status.retrying_since.get_or_insert(now);
        self.look_again(POLL);
        if self.delete_submitter() {
            return self.tell_what_does_not_go();
        }
        match self
            .observed
            .cluster
            .as_deref()
            .filter(|cluster| !self.needs_another(cluster))
        {
            Some(cluster) => self.start_over(cluster),
            None if self.delete_cluster() => self.tell_what_does_not_go(),
            None => {
                self.status.ray_cluster_name = cluster_name(self.job, self.status.num_retries);
                self.status.dashboard_url.clear();
                self.status.previous_session.clear();
                self.again();
            }
        }
    }

    /// True if the next attempt cannot be made on this cluster.
    fn needs_another(&self, cluster: &RayCluster) -> bool {
        self.job.spec.retry_policy == Some(RayJobRetryPolicy::NewCluster)
            || self.status.needs_new_cluster
            || cluster.is_deleting()
            || failed(cluster).is_some()
            || self.since(self.status.retrying_since.as_ref()) > PATIENCE
    }

    /// Has Ray restarted in its pods, and waits until it is.
    fn start_over(&mut self, cluster: &RayCluster) {
        let word = self.status.job_id.clone();
        let jobset = self.observed.jobset.as_deref();
        let before = &self.status.previous_session;
        let is_another = match self.ray {
            // Which Ray the attempt before belonged to is not known. One that knows it is the same
            // one.
            Ray::Reached { session, job } if before.is_empty() => {
                let is_restarted = || jobset.is_some_and(|jobset| has_restarted(jobset, &word));
                job.is_none() && (!session.is_empty() || is_restarted())
            }
            // Nor is one that knows it another one, whatever it calls itself.
            Ray::Reached { session, job } => session != before && job.is_none(),
            Ray::Unasked | Ray::Unreachable | Ray::Denied(_) | Ray::Refused(_) | Ray::Failing(_) => false,
        };
        if is_another && self.is_ready(cluster) {
            return self.again();
        }
        // A head that was restarted already needs no restart of its own.
        let asked = |jobset: &JobSet| jobset.annotation(annotations::RESTART_REQUEST) == Some(word.as_str());
        if let Some(jobset) = jobset.filter(|jobset| !is_another && !asked(jobset)) {
            let jobset = JobRef {
                name: jobset.name().to_owned(),
                uid: jobset.uid_str().to_owned(),
            };
            self.plan.restart = Some((jobset, word));
        }
    }

    fn again(&mut self) {
        self.status.retrying_since = None;
        self.forgive();
        self.forget_what_was_waited_for();
        self.enter(Phase::Initializing);
    }
}

/// True if all workers have been restarted since this word asked for it.
fn has_restarted(jobset: &JobSet, word: &str) -> bool {
    let in_place = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    in_place.is_some_and(|in_place| {
        in_place.handled_manual_request.as_deref() == Some(word)
            && in_place.phase == Some(InPlacePhase::InSync)
    })
}
