//! How attempts and jobs end: deadlines, failures, suspension and deletion.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::ray::{RayJobDeploymentStatus as Phase, RayJobStatus};

use super::attempt::{job_id, last_id};
use super::follow::Submitter;
use super::{Draft, POLL, Ray, SHOWN, has_ended, pace, question};
use crate::jobset::plan::Severity;

/// How long the deletion of a RayJob waits for its job to stop.
const STOP_ON_DELETION: SignedDuration = SignedDuration::from_secs(30);
/// How long Ray is asked to stop a job that has passed its deadline.
const STOP_AT_DEADLINE: SignedDuration = SignedDuration::from_secs(600);

impl Draft<'_> {
    /// Ends the job if a deadline has passed, whatever its state. Returns true then.
    pub(super) fn is_past_deadline(&mut self) -> bool {
        let spec = &self.job.spec;
        let elapsed = self.since(self.status.start_time.as_ref());
        let left = |seconds: Option<i64>| Some(SignedDuration::from_secs(seconds?).saturating_sub(elapsed));
        let phase = &self.status.job_deployment_status;
        // Ray may have the job although the status does not say so yet.
        let is_taken = matches!(self.ray, Ray::Reached { job: Some(_), .. })
            || *phase == Some(Phase::Initializing) && self.submitter() != Submitter::Missing;
        let before_running = matches!(phase, Some(Phase::Initializing | Phase::Retrying))
            && self.status.first_submission_time.is_none()
            && !is_taken;
        let limits = [
            (
                "DeadlineExceeded",
                "activeDeadlineSeconds",
                left(spec.active_deadline_seconds),
            ),
            (
                "PreRunningDeadlineExceeded",
                "preRunningDeadlineSeconds",
                left(spec.pre_running_deadline_seconds).filter(|_| before_running),
            ),
        ];
        for (reason, field, left) in limits {
            let Some(left) = left else { continue };
            if left.is_positive() {
                self.requeue(left);
                let soonest = self.plan.deadline.map_or(left, |before| before.min(left));
                self.plan.deadline = Some(soonest);
                continue;
            }
            self.stop_last();
            if self.status.job_status.is_empty() {
                // It might still submit.
                self.delete_submitter();
            }
            self.status.deadline_exceeded = true;
            self.fail(reason, format!("the job has passed its {field}"));
            return true;
        }
        false
    }

    /// Stops the latest attempt, and records that in the status. An attempt that was only prepared
    /// is never made.
    fn stop_last(&mut self) {
        let status = &mut self.status;
        if status.job_deployment_status == Some(Phase::Retrying) {
            status.job_id = last_id(self.job, status);
            status.session = std::mem::take(&mut status.previous_session);
            status.num_retries = status.num_retries.saturating_sub(1).max(0);
            // Its failure counts as the job's.
            status.failed = status.failed.saturating_sub(1).max(0);
        }
        let has_ended = has_ended(&status.job_status)
            || matches!(self.ray, Ray::Reached { job: Some(info), .. } if info.has_ended());
        if !status.dashboard_url.is_empty() && !has_ended {
            self.plan.stop = Some(status.job_id.clone());
        }
    }

    /// Fails the job for good.
    pub(super) fn fail(&mut self, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.publish(Severity::Warning, reason, message.clone());
        self.status.job_deployment_status = Some(Phase::Failed);
        self.status.reason = reason.to_owned();
        self.status.message = message;
        self.status.failed = self.status.failed.saturating_add(1);
        let now = self.now();
        self.status.end_time.get_or_insert(now);
        self.status.unreachable_since = None;
        self.status.submitter_lost_since = None;
    }

    /// Ends a failed attempt. Begins another one if retries are left.
    pub(super) fn attempt_failed(&mut self, reason: &str, message: impl Into<String>) {
        let message = message.into();
        if self.status.num_retries >= self.job.spec.retries() {
            return self.fail(reason, message);
        }
        let status = &mut self.status;
        status.failed = status.failed.saturating_add(1);
        status.num_retries = status.num_retries.saturating_add(1);
        status.job_id = job_id(self.job, status.num_retries);
        status.previous_session = std::mem::take(&mut status.session);
        status.job_status.clear();
        status.ray_job_info = Default::default();
        status.end_time = None;
        status.unreachable_since = None;
        status.submitter_lost_since = None;
        status.reason.clear();
        status.message = message.clone();
        status.retrying_since = Some(Time(self.observed.now));
        status.job_deployment_status = Some(Phase::Retrying);
        let attempt = status.num_retries;
        let message = format!(
            "{reason}: {message}; retry {attempt} of {}",
            self.job.spec.retries()
        );
        self.publish(Severity::Warning, "Retrying", message);
    }

    /// Deletes all objects of the job, then reports it as suspended.
    pub(super) fn suspend(&mut self) {
        if self.delete_submitter() | self.delete_cluster() {
            // No other field records since when it waits for the pods of a deleted cluster.
            let now = self.now();
            self.status.retrying_since.get_or_insert(now);
            self.report_stuck_deletion();
            return self.requeue(POLL);
        }
        self.status = RayJobStatus {
            conditions: std::mem::take(&mut self.status.conditions),
            ..RayJobStatus::default()
        };
        self.enter(Phase::Suspended);
    }

    /// After the end: stops a job that has passed its deadline, and deletes the cluster after its
    /// TTL. The submitter stays for its logs.
    pub(super) fn clean_up(&mut self) {
        let over = self.since(self.status.end_time.as_ref());
        if let Ray::Reached {
            session,
            job: Some(info),
        } = self.ray
            && *session == self.status.session
        {
            self.status.job_status.clone_from(&info.status);
            if !info.has_ended() {
                self.plan.stop = Some(self.status.job_id.clone());
            }
        }
        if question(self.job).is_some() && !has_ended(&self.status.job_status) && over < STOP_AT_DEADLINE {
            self.requeue(pace(over));
        }
        if !self.job.spec.shuts_down() {
            return;
        }
        let ttl = SignedDuration::from_secs(self.job.spec.ttl_seconds_after_finished.unwrap_or(0).max(0));
        if over < ttl {
            return self.requeue(ttl.saturating_sub(over));
        }
        if self.submitter() == Submitter::Works && over < ttl.saturating_add(SHOWN) {
            return self.requeue(POLL);
        }
        if !self.delete_cluster() && self.submitter() == Submitter::Works {
            // It waits for a deleted Ray.
            self.delete_submitter();
            self.requeue(POLL);
        }
    }

    /// Handles the deletion of the RayJob: its job is stopped first, if possible.
    pub(super) fn finalize(&mut self) {
        let waited = self.since(self.job.metadata.deletion_timestamp.as_ref());
        let is_live = match self.ray {
            Ray::Unasked => false,
            Ray::Unreachable | Ray::Denied(_) | Ray::Refused(_) | Ray::Failing(_) => {
                self.status.job_deployment_status == Some(Phase::Running)
            }
            Ray::Reached { job, .. } => job.as_ref().is_some_and(|job| !job.has_ended()),
        };
        if is_live && waited < STOP_ON_DELETION {
            self.plan.stop = Some(last_id(self.job, &self.status));
            self.requeue(SignedDuration::from_secs(1));
        } else {
            self.plan.remove_finalizer = true;
        }
    }
}
