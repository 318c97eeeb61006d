//! Takes a RayJob from its start to the submission: the cluster, its head, and the submitter.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ray::{
    RayCluster, RayClusterState, RayJobDeploymentStatus as Phase, RayJobSubmissionMode, conditions, keys,
};

use super::attempt::cluster_for;
use super::{Draft, POLL, Ray, SLOWEST};
use crate::jobset::plan::Severity;
use crate::ray::cluster::is_left_by;
use crate::ray::submitter;

impl Draft<'_> {
    /// Creates the cluster, and submits the job once its head is ready.
    pub(super) fn initialize(&mut self) {
        if self.is_settled_by_submitter() {
            return;
        }
        let Some(cluster) = self.observed.cluster.as_deref() else {
            let name = &self.status.ray_cluster_name;
            let cluster = cluster_for(self.job, name);
            let message = format!("Created RayCluster {name}");
            self.clear_waiting();
            self.plan.create_cluster = Some(Box::new(cluster));
            return self.publish(Severity::Normal, "CreatedRayCluster", message);
        };
        if cluster.is_deleting() || self.is_left(&cluster.metadata) {
            // A new one replaces it once it is gone.
            self.requeue(POLL);
            return self.report_stuck_deletion();
        }
        if !self.owns(&cluster.metadata) {
            let message = format!("RayCluster {} belongs to another owner", cluster.name());
            return self.fail("SubmissionFailed", message);
        }
        if let Some(reason) = failed(cluster) {
            return self.attempt_failed("SubmissionFailed", format!("the cluster has failed: {reason}"));
        }
        if let Some(message) = self.never_starts(cluster) {
            return self.give_head_up(message);
        }
        if !self.is_ready(cluster) {
            // A dashboard that does not answer means nothing then.
            self.reached();
            self.say_what_it_lacks(cluster);
            // Failures of the head's pods do not change the cluster, so no watch event reports
            // them.
            return self.requeue(SLOWEST);
        }
        self.clear_waiting();
        self.poll();
        self.status.dashboard_url = dashboard(cluster);
        let (session, job) = match self.ray {
            Ray::Reached { session, job } => (session, job),
            Ray::Unasked => return,
            Ray::Refused(why) => return self.refused(why),
            Ray::Failing(why) => return self.failing(why),
            Ray::Unreachable => {
                self.status.message = format!("{} is unreachable", self.status.dashboard_url);
                return self.out_of_reach();
            }
            Ray::Denied(status) => {
                self.status.message = format!("{} answered {status}", self.status.dashboard_url);
                return self.out_of_reach();
            }
        };
        self.reached();
        // The session must be durable before the submission.
        if self.status.session != *session {
            self.status.session.clone_from(session);
            return;
        }
        if job.is_some() {
            return self.running();
        }
        match self.job.spec.submission_mode() {
            RayJobSubmissionMode::HTTPMode => {
                self.plan.submit = Some(submitter::body(self.job, &self.status))
            }
            _ if self.delete_submitter() => {}
            _ => {
                self.create_submitter();
                self.running();
            }
        }
    }

    /// Handles an existing submitter. Returns false if there is none, or one that may be replaced.
    fn is_settled_by_submitter(&mut self) -> bool {
        if self
            .observed
            .submitter
            .as_deref()
            .is_some_and(|job| self.owns(&job.metadata) && !is_old(job, &self.status.job_id))
        {
            self.running();
            return true;
        }
        if let Some(job) = self.observed.submitter.as_deref()
            && self.is_foreign(job)
        {
            let message = format!("Job {} belongs to another owner", self.job.name());
            self.fail("SubmissionFailed", message);
            return true;
        }
        false
    }

    /// Reports why the cluster does not come up, if its status tells.
    fn say_what_it_lacks(&mut self, cluster: &RayCluster) {
        let status = cluster.status.as_ref();
        let Some(failure) = status
            .and_then(|status| status.condition(conditions::REPLICA_FAILURE))
            .filter(|failure| failure.status == "True")
        else {
            return self.clear_waiting();
        };
        let what = format!("RayCluster {} comes up: {}", cluster.name(), failure.message);
        if self.wait_for(&what) {
            let message = self.status.message.clone();
            self.publish(Severity::Warning, conditions::REPLICA_FAILURE, message);
        }
    }

    /// Clears the message about a dashboard that cannot be reached or does not take the job.
    fn reached(&mut self) {
        if self.status.unreachable_since.take().is_some() {
            self.status.message.clear();
        }
    }

    fn running(&mut self) {
        self.has_been_submitted();
        self.enter(Phase::Running);
        self.requeue(POLL);
    }

    /// True if the job can be submitted: the head is ready, and all workers too if the spec asks
    /// for that.
    pub(super) fn is_ready(&self, cluster: &RayCluster) -> bool {
        let all = self.job.spec.wait_for_all_pods_healthy.unwrap_or(false);
        cluster.status.as_ref().is_some_and(|status| {
            let enough = !all
                || status.is_true(conditions::PROVISIONED)
                    && status.ready_worker_replicas >= status.desired_worker_replicas;
            status.is_true(conditions::HEAD_POD_READY) && enough
        })
    }

    /// True if an object is left over from a former RayJob of this name.
    fn is_left(&self, meta: &ObjectMeta) -> bool {
        is_left_by(meta, "RayJob", self.job.name(), self.job.uid_str())
    }

    /// True if the Job of the RayJob's name has another owner. Leftovers of a former RayJob of this
    /// name disappear by themselves.
    fn is_foreign(&self, job: &Job) -> bool {
        self.job.spec.submission_mode() == RayJobSubmissionMode::K8sJobMode
            && !self.owns(&job.metadata)
            && !self.is_left(&job.metadata)
            && job.metadata.deletion_timestamp.is_none()
    }
}

/// Why a cluster has failed.
pub(super) fn failed(cluster: &RayCluster) -> Option<&str> {
    let status = cluster.status.as_ref()?;
    (status.state == Some(RayClusterState::failed)).then_some(status.reason.as_str())
}

/// True if a submitter belongs to an earlier attempt.
pub(super) fn is_old(job: &Job, id: &str) -> bool {
    let annotations = job.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(keys::JOB_ID))
        .map(String::as_str)
        != Some(id)
}

/// Host and port of a cluster's dashboard.
pub(super) fn dashboard(cluster: &RayCluster) -> String {
    let endpoints = cluster.status.as_ref().map(|status| &status.endpoints);
    let port = endpoints
        .and_then(|endpoints| endpoints.get("dashboard"))
        .map_or("8265", String::as_str);
    let service = crate::ray::names::head_service(cluster.name());
    format!("{service}.{}.svc:{port}", cluster.ns())
}
