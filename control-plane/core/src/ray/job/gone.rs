//! Deletion: objects that stay, objects that cannot be created, and submitters whose pods are lost.

use std::fmt::Display;

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Draft, Pods};
use crate::jobset::plan::{JobRef, Severity};
use crate::ray::submitter;

/// Finalizer of an object that is deleted after its dependents
/// (`metav1.FinalizerDeleteDependents`).
const FOREGROUND: &str = "foregroundDeletion";
/// How long a deletion may take before it is reported; also how long a submitter may be without a
/// live pod.
const GOES_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// How messages about what an operator must resolve begin.
const WAITS: &str = "waiting until ";

impl<'a> Draft<'a> {
    /// Deletes the submitter, its pods first. After a while it no longer waits for the pods.
    /// Returns true while the submitter exists.
    pub(super) fn delete_submitter(&mut self) -> bool {
        let Some(submitter) = self.own_submitter() else {
            return false;
        };
        let deleted = submitter.metadata.deletion_timestamp.as_ref();
        if deleted.is_none() {
            self.delete(submitter, Pods::First);
        } else if self.since(deleted) > GOES_WITHIN {
            self.delete_without_pods(submitter);
        }
        true
    }

    fn own_submitter(&self) -> Option<&'a Job> {
        let submitter = self.observed.submitter.as_deref()?;
        Some(submitter).filter(|job| self.owns(&job.metadata))
    }

    /// Deletes a submitter without waiting for its pods.
    fn delete_without_pods(&mut self, submitter: &Job) {
        let meta = &submitter.metadata;
        let mut finalizers = meta.finalizers.iter().flatten();
        if meta.deletion_timestamp.is_none() || finalizers.any(|name| name == FOREGROUND) {
            self.delete(submitter, Pods::Later);
        }
    }

    fn delete(&mut self, submitter: &Job, pods: Pods) {
        let submitter = JobRef::of(submitter);
        let message = format!("Deleted Job {}", submitter.name);
        self.plan.delete_submitter = Some((submitter, pods));
        self.publish(Severity::Normal, "DeletedRayJobSubmitter", message);
    }

    /// Deletes the cluster. Returns true while the cluster or its pods exist, since a driver may
    /// run there.
    pub(super) fn delete_cluster(&mut self) -> bool {
        let Some(cluster) = self
            .observed
            .cluster
            .as_deref()
            .filter(|cluster| self.owns(&cluster.metadata))
        else {
            return self.observed.has_left_pods;
        };
        if !cluster.is_deleting() {
            let cluster = JobRef {
                name: cluster.name().to_owned(),
                uid: cluster.uid_str().to_owned(),
            };
            let message = format!("Deleted RayCluster {}", cluster.name);
            self.plan.delete_cluster = Some(cluster);
            self.publish(Severity::Normal, "DeletedRayCluster", message);
        }
        true
    }

    /// Plans the submitter.
    pub(super) fn create_submitter(&mut self) {
        self.clear_waiting();
        let job = submitter::job(self.job, &self.status, self.observed.now);
        self.plan.create_submitter = Some(Box::new(job));
        let message = format!("Created Job {}", self.job.name());
        self.publish(Severity::Normal, "CreatedRayJobSubmitter", message);
    }

    /// Reports objects that stay long after their deletion: in the status, and once in an event.
    pub(super) fn report_stuck_deletion(&mut self) {
        let is_late = |since: &Option<Time>| {
            let since = since.as_ref()?;
            (self.since(Some(since)) > GOES_WITHIN).then(|| since.0.to_string())
        };
        let submitter = self.observed.submitter.as_deref().and_then(|job| {
            let since = is_late(&job.metadata.deletion_timestamp)?;
            let message = format!(
                "{WAITS}Job {} is gone: it has been terminating since {since}",
                self.job.name()
            );
            Some(("FailedToDeleteRayJobSubmitter", message))
        });
        let cluster = self.observed.cluster.as_deref().and_then(|cluster| {
            let since = is_late(&cluster.metadata.deletion_timestamp)?;
            let name = cluster.name();
            let message = format!(
                "{WAITS}RayCluster {name} is gone: it has been terminating since {since}, and one of its pods may be on a lost node \
                 (label ray.io/cluster={name})"
            );
            Some(("FailedToDeleteRayCluster", message))
        });
        let since = self.status.retrying_since.as_ref();
        let is_late = self.observed.has_left_pods && self.since(since) > GOES_WITHIN;
        let pods = is_late.then(|| {
            let name = &self.status.ray_cluster_name;
            let message = format!(
                "{WAITS}the pods of the deleted RayCluster {name} are gone; one of them may be on a lost node \
                 (label ray.io/cluster={name})"
            );
            ("FailedToDeleteRayCluster", message)
        });
        if let Some((reason, message)) = submitter.or(cluster).or(pods)
            && self.status.message != message
        {
            self.publish(Severity::Warning, reason, message.clone());
            self.status.message = message;
        }
    }

    /// Shows in the status what an operator must resolve. Returns true if that is new.
    pub(super) fn wait_for(&mut self, what: impl Display) -> bool {
        let message = format!("{WAITS}{what}");
        let is_new = self.status.message != message;
        self.status.message = message;
        is_new
    }

    /// Clears that message.
    pub(super) fn clear_waiting(&mut self) {
        if self.status.message.starts_with(WAITS) {
            self.status.message.clear();
        }
    }

    /// Deletes a submitter whose only pod has been terminating for a while, as on a lost node. The
    /// Job controller creates another pod only once that one has ended.
    pub(super) fn replace_lost_submitter(&mut self) {
        let status = self
            .observed
            .submitter
            .as_ref()
            .and_then(|job| job.status.as_ref());
        let is_lost = status
            .is_some_and(|status| status.active.unwrap_or(0) == 0 && status.terminating.unwrap_or(0) > 0);
        if !is_lost {
            self.status.submitter_lost_since = None;
            return;
        }
        let now = self.now();
        let since = self.status.submitter_lost_since.get_or_insert(now).clone();
        if self.since(Some(&since)) > GOES_WITHIN {
            self.status.submitter_lost_since = None;
            // Its pod has used up its grace period.
            if let Some(submitter) = self.own_submitter() {
                self.delete_without_pods(submitter);
            }
        }
    }
}
