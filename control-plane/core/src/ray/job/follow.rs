//! While the job runs: what Ray says of it, else what its submitter says.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::ray::{RayJobDeploymentStatus as Phase, RayJobSubmissionMode, conditions};

use super::initialize::{dashboard, failed, is_old};
use super::{Draft, POLL, Ray, RayInfo, SHOWN, SLOWEST, has_ended};
use crate::ray::submitter;

/// How long Ray may be out of reach before the attempt is given up.
const OUT_OF_REACH: SignedDuration = SignedDuration::from_secs(300);
/// Said of a job whose dashboard the control plane does not reach, while nothing else speaks
/// against it.
const SEEN: &str = "the control plane cannot reach the dashboard, but the head is ready and the submitter works: the job keeps running";

/// What has become of the submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitter {
    /// There is none, or another attempt's.
    Missing,
    /// It works.
    Works,
    /// It is suspended, as by Kueue, and has no pod.
    Suspended,
    /// It says that the job has succeeded.
    Succeeded,
    /// It says that the job has failed.
    JobFailed,
    /// It has failed itself.
    Failed,
    /// It has ended, and runs a command of its user's own: that says nothing about the job.
    Ended,
}

impl Draft<'_> {
    pub(super) fn follow(&mut self) {
        self.has_been_submitted();
        if let Some(cluster) = &self.observed.cluster
            && self.status.dashboard_url.is_empty()
            && self.owns(&cluster.metadata)
        {
            // The status was lost. It is asked from the next look on.
            self.status.dashboard_url = dashboard(cluster);
        }
        let submitter = self.submitter();
        if has_ended(&self.status.job_status) {
            return self.conclude(submitter);
        }
        match self.is_seen_by(submitter) {
            true => self.look_again(SLOWEST),
            false => self.poll(),
        }
        match self.ray.clone() {
            // Its id is the attempt's, so it was submitted to this Ray: what is not known is which
            // one that was.
            Ray::Reached {
                session,
                job: Some(info),
            } if self.status.session.is_empty() => {
                self.status.session = session;
                self.told(&info, submitter);
            }
            Ray::Reached { session, .. } if session != self.status.session => {
                // The job may have ended before.
                if !self.seen_to_its_end(submitter) {
                    self.attempt_failed("HeadRestarted", "the head restarted while the job ran");
                }
            }
            Ray::Reached { job: Some(info), .. } => self.told(&info, submitter),
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
        if has_ended && submitter::is_stated(&self.job.spec) {
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

    /// Ray knows the job.
    fn told(&mut self, info: &RayInfo, submitter: Submitter) {
        let status = &mut self.status;
        status.job_status.clone_from(&info.status);
        status.message.clone_from(&info.message);
        status.ray_job_info.start_time = info.start.map(Time);
        status.ray_job_info.end_time = info.end.map(Time);
        status.unreachable_since = None;
        match info.has_ended() {
            true => self.conclude(submitter),
            // The job runs whatever has become of its submitter; another one attaches to it.
            false => self.attach(submitter),
        }
    }

    /// Ray has said how the job has ended. What comes next takes the submitter away, be it here or
    /// by who looks at the RayJob (Kueue suspends the Job of one that is finished): so that waits,
    /// for a while, until all that the driver has printed is shown.
    fn conclude(&mut self, submitter: Submitter) {
        let now = self.now();
        let ended = self.status.end_time.get_or_insert(now).clone();
        if self.is_showing(submitter) && self.since(Some(&ended)) < SHOWN {
            return self.look_again(POLL);
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

    /// True if the submitter has a pod that shows what the driver has printed.
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

    /// Ray answers, and does not know the job.
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

    /// Ray does not answer. What the submitter has seen to its end counts.
    fn unreachable(&mut self, submitter: Submitter) {
        if let Some(reason) = self.observed.cluster.as_deref().and_then(failed) {
            return self.attempt_failed("AppFailed", format!("the cluster has failed: {reason}"));
        }
        if self.seen_to_its_end(submitter) {
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
        match self.is_seen_by(submitter) {
            // What keeps the control plane from the dashboard is not the job's.
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

    /// True if Ray answers others although it does not answer here: the kubelet holds the head
    /// ready, and a submitter of ours runs. Another may run whatever becomes of the job.
    fn is_seen_by(&self, found: Submitter) -> bool {
        let is_out_of_reach = matches!(self.ray, Ray::Unreachable | Ray::Denied(_));
        let follows = self.is_showing(found) && !submitter::is_stated(&self.job.spec);
        is_out_of_reach && self.head_is_ready() && follows
    }

    fn head_is_ready(&self) -> bool {
        let cluster = self.observed.cluster.as_ref();
        let status = cluster.and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| status.is_true(conditions::HEAD_POD_READY))
    }

    /// Has the job's eyes replaced where they are lost. A submitter looks itself whether Ray is the
    /// one that the job belongs to.
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

    /// What the submitter has seen of the job's end counts where Ray cannot tell. False: nothing.
    fn seen_to_its_end(&mut self, submitter: Submitter) -> bool {
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

    /// Ray does not answer: the attempt is given up in the end. Time in which no leader has looked
    /// does not count.
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

    /// The dashboard has not taken the job, for a reason that may pass.
    pub(super) fn failing(&mut self, why: &str) {
        self.status.message = format!("{} has not accepted the job: {why}", self.status.dashboard_url);
        self.out_of_reach();
    }

    /// What is to be done before a job was submitted need not be done in time any more.
    pub(super) fn has_been_submitted(&mut self) {
        let now = self.now();
        self.status.first_submission_time.get_or_insert(now);
    }

    /// Ray would not take the job.
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
