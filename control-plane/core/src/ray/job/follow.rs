//! Follows a running job: by Ray's answer, or else by its submitter.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::ray::{RayJobDeploymentStatus as Phase, RayJobSubmissionMode, conditions};

use super::initialize::{dashboard, failed, is_old};
use super::{Draft, POLL, Ray, RayInfo, SHOWN, SLOWEST, has_ended};
use crate::ray::submitter;

/// How long Ray may be unreachable before the attempt is given up.
const OUT_OF_REACH: SignedDuration = SignedDuration::from_secs(300);
/// Message of a job whose dashboard the control plane cannot reach, while all else looks healthy.
const SEEN: &str = "the control plane cannot reach the dashboard, but the head is ready and the submitter works: the job keeps running";

/// State of the submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitter {
    /// There is none, or it belongs to another attempt.
    Missing,
    /// It runs.
    Works,
    /// It is suspended, for example by Kueue, and has no pod.
    Suspended,
    /// It reports that the job has succeeded.
    Succeeded,
    /// It reports that the job has failed.
    JobFailed,
    /// The submitter itself has failed, which does not show how the job ended.
    Failed,
    /// It runs the user's own command and has ended, which does not show how the job ended.
    Ended,
}

impl Draft<'_> {
    pub(super) fn follow(&mut self) {
        self.has_been_submitted();
        if let Some(cluster) = &self.observed.cluster
            && self.status.dashboard_url.is_empty()
            && self.owns(&cluster.metadata)
        {
            // The status was lost. The dashboard is asked from the next reconciliation on.
            self.status.dashboard_url = dashboard(cluster);
        }
        let submitter = self.submitter();
        if has_ended(&self.status.job_status) {
            return self.conclude(submitter);
        }
        match self.is_reachable_for(submitter) {
            true => self.requeue(SLOWEST),
            false => self.poll(),
        }
        match self.ray.clone() {
            // The id is the attempt's, so the job was submitted to this Ray, whose session was not
            // known.
            Ray::Reached {
                session,
                job: Some(info),
            } if self.status.session.is_empty() => {
                self.status.session = session;
                self.reported(&info, submitter);
            }
            Ray::Reached { session, .. } if session != self.status.session => {
                // The job may have ended before.
                if !self.ended_by_submitter(submitter) {
                    self.attempt_failed("HeadRestarted", "the head restarted while the job ran");
                }
            }
            Ray::Reached { job: Some(info), .. } => self.reported(&info, submitter),
            Ray::Reached { job: None, .. } => self.unknown(submitter),
            Ray::Refused(why) => self.refused(&why),
            Ray::Failing(why) => self.failing(&why),
            Ray::Unasked | Ray::Unreachable | Ray::Denied(_) => self.unreachable(submitter),
        }
    }

    pub(super) fn submitter(&self) -> Submitter {
        let own = self
            .observed
            .submitter
            .as_deref()
            .filter(|job| self.owns(&job.metadata));
        let Some(job) = own.filter(|job| !is_old(job, &self.status.job_id)) else {
            return Submitter::Missing;
        };
        let has_ended = has_condition(job, "Complete", None) || has_condition(job, "Failed", None);
        if has_ended && submitter::has_own_command(&self.job.spec) {
            Submitter::Ended
        } else if has_condition(job, "Complete", None) {
            Submitter::Succeeded
        } else if has_condition(job, "Failed", Some("PodFailurePolicy")) {
            Submitter::JobFailed
        } else if has_condition(job, "Failed", None) {
            Submitter::Failed
        } else if job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)) {
            Submitter::Suspended
        } else {
            Submitter::Works
        }
    }

    /// Handles Ray's report of the job.
    fn reported(&mut self, info: &RayInfo, submitter: Submitter) {
        let status = &mut self.status;
        status.job_status.clone_from(&info.status);
        status.message.clone_from(&info.message);
        status.ray_job_info.start_time = info.start.map(Time);
        status.ray_job_info.end_time = info.end.map(Time);
        status.unreachable_since = None;
        match info.has_ended() {
            true => self.conclude(submitter),
            // The job runs without its submitter too. A new one attaches to it.
            false => self.attach(submitter),
        }
    }

    /// Records the end that Ray has reported. The steps after it remove the submitter, here or
    /// elsewhere (Kueue suspends the Job of a finished RayJob). So they wait for a while until the
    /// driver's output is shown.
    fn conclude(&mut self, submitter: Submitter) {
        let now = self.now();
        let ended = self.status.end_time.get_or_insert(now).clone();
        if self.is_showing(submitter) && self.since(Some(&ended)) < SHOWN {
            return self.requeue(POLL);
        }
        match self.status.job_status.as_str() {
            "SUCCEEDED" => {
                self.status.succeeded = 1;
                self.complete();
            }
            "FAILED" => {
                let message = self.status.message.clone();
                self.attempt_failed("AppFailed", message);
            }
            _ => self.complete(),
        }
    }

    /// True if the submitter has a pod that prints the driver's output.
    fn is_showing(&self, submitter: Submitter) -> bool {
        let job = self.observed.submitter.as_ref();
        let ready = job.and_then(|job| job.status.as_ref()?.ready).unwrap_or(0);
        submitter == Submitter::Works && ready > 0
    }

    fn complete(&mut self) {
        let now = self.now();
        self.status.end_time.get_or_insert(now);
        self.status.reason.clear();
        self.enter(Phase::Complete);
    }

    fn attach(&mut self, submitter: Submitter) {
        if self.job.spec.submission_mode() != RayJobSubmissionMode::K8sJobMode {
            return;
        }
        match submitter {
            Submitter::Works => self.replace_lost_submitter(),
            Submitter::Ended | Submitter::Suspended => {}
            Submitter::Missing if self.observed.submitter.is_none() => self.create_submitter(),
            Submitter::Missing | Submitter::Succeeded | Submitter::JobFailed | Submitter::Failed => {
                self.delete_submitter();
            }
        }
    }

    /// Handles an answer from Ray that does not know the job.
    fn unknown(&mut self, submitter: Submitter) {
        self.status.unreachable_since = None;
        if self.status.message == SEEN {
            self.status.message.clear();
        }
        if !self.status.job_status.is_empty() {
            return self.attempt_failed("AppFailed", "Ray no longer knows the job");
        }
        if self.job.spec.submission_mode() == RayJobSubmissionMode::HTTPMode {
            self.plan.submit = Some(submitter::body(self.job, &self.status));
            return;
        }
        match submitter {
            Submitter::Works | Submitter::Suspended | Submitter::Missing => self.attach(submitter),
            Submitter::Succeeded | Submitter::JobFailed | Submitter::Failed | Submitter::Ended => {
                self.attempt_failed(
                    "SubmissionFailed",
                    "the submitter has ended, and Ray does not know the job",
                );
            }
        }
    }

    /// Handles the case that Ray does not answer. If the submitter has seen the end of the job,
    /// that counts.
    fn unreachable(&mut self, submitter: Submitter) {
        if let Some(reason) = self.observed.cluster.as_deref().and_then(failed) {
            return self.attempt_failed("AppFailed", format!("the cluster has failed: {reason}"));
        }
        if self.ended_by_submitter(submitter) {
            return;
        }
        if self.observed.cluster.is_none() {
            let name = &self.status.ray_cluster_name;
            let message = format!("RayCluster {name} was deleted while the job ran");
            return self.attempt_failed("AppFailed", message);
        }
        if self.head_is_ready() {
            self.keep_submitter(submitter);
        }
        match self.is_reachable_for(submitter) {
            // A broken link to the dashboard is no failure of the job.
            true => {
                self.status.unreachable_since = None;
                self.status.message = SEEN.to_owned();
            }
            false => {
                if self.status.message == SEEN {
                    self.status.message.clear();
                }
                self.out_of_reach();
            }
        }
    }

    /// True if Ray answers other clients, but not this one: the kubelet reports the head as ready,
    /// and our own submitter runs. A user's own submitter may keep running whatever happens to the
    /// job.
    fn is_reachable_for(&self, found: Submitter) -> bool {
        let is_out_of_reach = matches!(self.ray, Ray::Unreachable | Ray::Denied(_));
        let follows = self.is_showing(found) && !submitter::has_own_command(&self.job.spec);
        is_out_of_reach && self.head_is_ready() && follows
    }

    fn head_is_ready(&self) -> bool {
        let cluster = self.observed.cluster.as_ref();
        let status = cluster.and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| status.is_true(conditions::HEAD_POD_READY))
    }

    /// Replaces a lost submitter. The submitter itself checks the session of Ray.
    fn keep_submitter(&mut self, submitter: Submitter) {
        let is_k8s = self.job.spec.submission_mode() == RayJobSubmissionMode::K8sJobMode;
        match submitter {
            Submitter::Works => self.replace_lost_submitter(),
            Submitter::Missing
                if is_k8s && self.observed.submitter.is_none() && !self.status.session.is_empty() =>
            {
                self.create_submitter();
            }
            _ => {}
        }
    }

    /// Records the end that the submitter has seen, if Ray cannot tell. Returns false if it has
    /// seen none.
    fn ended_by_submitter(&mut self, submitter: Submitter) -> bool {
        match submitter {
            Submitter::Succeeded => {
                self.status.job_status = "SUCCEEDED".to_owned();
                self.status.succeeded = 1;
                self.complete();
            }
            Submitter::JobFailed => {
                self.status.job_status = "FAILED".to_owned();
                self.attempt_failed("AppFailed", "the submitter reports that the job has failed");
            }
            Submitter::Missing
            | Submitter::Works
            | Submitter::Suspended
            | Submitter::Failed
            | Submitter::Ended => return false,
        }
        true
    }

    /// Gives up the attempt once Ray was unreachable for too long. Time without a leader does not
    /// count.
    pub(super) fn out_of_reach(&mut self) {
        let since = self
            .status
            .unreachable_since
            .get_or_insert(Time(self.observed.now))
            .0
            .max(self.observed.watched_since);
        if self.since(Some(&Time(since))) > OUT_OF_REACH {
            let message = format!("Ray was unreachable for {} s", OUT_OF_REACH.as_secs());
            self.attempt_failed("JobStatusCheckTimeoutExceeded", message);
        }
    }

    /// Handles a dashboard that has not accepted the job for a temporary reason.
    pub(super) fn failing(&mut self, why: &str) {
        self.status.message = format!("{} has not accepted the job: {why}", self.status.dashboard_url);
        self.out_of_reach();
    }

    /// Notes the first submission, which ends `preRunningDeadlineSeconds`.
    pub(super) fn has_been_submitted(&mut self) {
        let now = self.now();
        self.status.first_submission_time.get_or_insert(now);
    }

    /// Fails the attempt, because Ray has refused the job.
    pub(super) fn refused(&mut self, why: &str) {
        self.attempt_failed("SubmissionFailed", format!("Ray refused the job: {why}"));
    }
}

fn has_condition(job: &Job, type_: &str, reason: Option<&str>) -> bool {
    let conditions = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .filter(|condition| condition.type_ == type_ && condition.status == "True")
        .any(|condition| reason.is_none_or(|reason| condition.reason.as_deref() == Some(reason)))
}
