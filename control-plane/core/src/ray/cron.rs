//! Decisions about one RayCronJob, like those of Kubernetes' CronJob controller about a CronJob.
//!
//! ```text
//!  latest missed start ──> too late? forbidden while a job runs? ──> RayJob <name>-<minutes>
//! ```
//!
//! Promises:
//! - Of several missed starts, only the latest is made up for.
//! - The name of a job follows from its scheduled time (minutes since 1970), and an existing job is
//!   not created again. So each start leads to one job, whatever crashes.
//! - Ended jobs above the history limits are deleted, the oldest first. Only `Replace` deletes
//!   running ones.

mod schedule;
mod start;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::ray::conditions::{UNSUPPORTED_FIELDS, VALIDATION_FAILED, reasons};
use lockstep_api::ray::{
    ConcurrencyPolicy, GROUP, RayCronJob, RayCronJobStatus, RayJob, RayJobDeploymentStatus as Phase, VERSION,
};

use self::start::{job, name};
use super::cluster::MANAGED_BY_ANOTHER;
use super::refusal::{Refusal, event};
use super::validation::{self, unsupported_annotation};
use crate::jobset::plan::{Event, JobRef, Severity};

pub use schedule::Schedule;
pub(super) use start::first_job;

/// More missed starts than this cause a warning.
const MANY: usize = 100;
/// The longest time between two reconciliations: the clock may be set meanwhile.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(10);
/// The shortest time between two reconciliations.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(100);

/// A RayCronJob, its jobs, and the time.
#[derive(Clone, Debug)]
pub struct ObservedCron {
    /// The RayCronJob itself.
    pub cron: Arc<RayCronJob>,
    /// The RayJobs that it controls.
    pub jobs: Vec<Arc<RayJob>>,
    /// True if KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// The current time.
    pub now: Timestamp,
}

/// The writes that bring the world closer to what a RayCronJob asks for, from top to bottom. One
/// that fails ends the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CronPlan {
    /// The running jobs to delete, because a new one replaces them.
    pub replace: Vec<JobRef>,
    /// The job to create. Decide this on a fresh read from the API server: watches may lag behind.
    pub create: Option<Box<RayJob>>,
    /// The whole status to write, if it has changed.
    pub status: Option<Box<RayCronJobStatus>>,
    /// The ended jobs to delete.
    pub forget: Vec<JobRef>,
    /// Events to publish once everything is written.
    pub events: Vec<Event>,
    /// Why nothing is done; published once.
    pub notice: Option<Event>,
    /// When to reconcile again even if nothing changes.
    pub requeue_after: Option<SignedDuration>,
    /// When the next start is due. Reconcile then even if a write of this plan has failed.
    pub deadline: Option<SignedDuration>,
}

/// Decides what to do about a RayCronJob.
#[must_use]
pub fn plan(observed: &ObservedCron) -> CronPlan {
    if observed.cron.is_deleting() {
        return CronPlan::default();
    }
    let mut draft = Draft::new(observed);
    if let Some(message) = draft.not_ours() {
        draft.plan.notice = Some(event(Severity::Warning, MANAGED_BY_ANOTHER, message));
        return draft.plan;
    }
    draft.name_unsupported();
    draft.follow();
    if let Some(schedule) = draft.schedule() {
        draft.forget();
        if !observed.cron.spec.is_suspended() {
            draft.start(&schedule);
        }
    }
    draft.finish()
}

/// A plan in the making.
struct Draft<'a> {
    observed: &'a ObservedCron,
    cron: &'a RayCronJob,
    /// Sorted by name, which is by time.
    jobs: Vec<&'a RayJob>,
    status: RayCronJobStatus,
    plan: CronPlan,
}

impl<'a> Draft<'a> {
    fn new(observed: &'a ObservedCron) -> Self {
        let mut jobs: Vec<&RayJob> = observed.jobs.iter().map(|job| &**job).collect();
        jobs.sort_by_key(|job| job.name());
        Self {
            observed,
            cron: &observed.cron,
            jobs,
            status: observed.cron.status.clone().unwrap_or_default(),
            plan: CronPlan::default(),
        }
    }

    fn publish(&mut self, severity: Severity, reason: &str, message: impl Into<String>) {
        self.plan.events.push(event(severity, reason, message));
    }

    fn not_ours(&self) -> Option<String> {
        if let Some(manager) = self.cron.managed_by_another() {
            return Some(format!(
                "spec.managedBy is {manager}: that controller manages this RayCronJob"
            ));
        }
        (self.observed.kuberay && !self.cron.is_claimed()).then(|| {
            format!(
                "KubeRay's controller runs here and manages this RayCronJob: set spec.managedBy to {} to hand it to Lockstep",
                lockstep_api::ray::CONTROLLER_NAME
            )
        })
    }

    /// Reports ignored fields.
    fn name_unsupported(&mut self) {
        let mut paths = self.cron.spec.unsupported("spec");
        paths.extend(unsupported_annotation(self.cron.metadata.annotations.as_ref()));
        let message = format!("not supported, and ignored: {}", paths.join(", "));
        let message = Some(message).filter(|_| !paths.is_empty());
        self.condition(UNSUPPORTED_FIELDS, reasons::IGNORED, UNSUPPORTED_FIELDS, message);
    }

    /// The schedule. If the spec is invalid, reports that and returns `None`.
    fn schedule(&mut self) -> Option<Schedule> {
        let violations = validation::cron(self.cron);
        let refusal = Refusal::invalid("RayCronJob", &violations);
        let message = Some(refusal.message).filter(|_| !violations.is_empty());
        let event_reason = "InvalidRayCronJobSpec";
        self.condition(
            VALIDATION_FAILED,
            reasons::VALIDATION_FAILED,
            event_reason,
            message,
        );
        match violations.is_empty() {
            true => Schedule::of(&self.cron.spec).ok(),
            false => None,
        }
    }

    /// Sets a condition, and publishes a new one in an event with the reason `event_reason`.
    /// Without a message the condition is removed.
    fn condition(&mut self, type_: &str, reason: &str, event_reason: &str, message: Option<String>) {
        let conditions = &mut self.status.conditions;
        let before = conditions.iter().position(|condition| condition.type_ == type_);
        let before = before.map(|index| conditions.remove(index));
        let Some(message) = message else { return };
        let is_new = before.as_ref().is_none_or(|before| before.message != message);
        let since = before.map_or(Time(self.observed.now), |before| before.last_transition_time);
        conditions.push(Condition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            last_transition_time: since,
            observed_generation: self.cron.metadata.generation,
        });
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        if is_new {
            self.publish(Severity::Warning, event_reason, message);
        }
    }

    /// Records which jobs run, and which have ended since.
    fn follow(&mut self) {
        for before in std::mem::take(&mut self.status.active) {
            let job = self.jobs.iter().find(|job| job.metadata.uid == before.uid);
            if let Some((job, end)) = job.and_then(|job| Some((job, end(job)?))) {
                let message = format!(
                    "Saw completed job: {}, condition: {}",
                    job.name(),
                    end.condition()
                );
                self.publish(Severity::Normal, "SawCompletedJob", message);
            }
        }
        let running = self
            .jobs
            .iter()
            .filter(|job| end(job).is_none() && !job.is_deleting());
        self.status.active = running.map(|job| reference(job)).collect();
        let succeeded = self
            .jobs
            .iter()
            .filter(|job| end(job) == Some(End::Succeeded))
            .filter_map(|job| job.status.as_ref()?.end_time.clone());
        let known = self.status.last_successful_time.take();
        self.status.last_successful_time = succeeded.chain(known).max_by_key(|time| time.0);
    }

    /// Starts the latest job that is due, unless something prevents it.
    fn start(&mut self, schedule: &Schedule) {
        let now = self.observed.now;
        let next = schedule.next(now);
        self.plan.deadline = next.map(|next| next.duration_since(now).max(SHORTEST_WAIT));
        let wait = self
            .plan
            .deadline
            .map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT));
        self.plan.requeue_after = Some(wait);
        let before = self.last_start();
        let Some(due) = schedule.latest(now).filter(|due| *due > before) else {
            return;
        };
        let name = name(self.cron, due);
        if self.jobs.iter().any(|job| job.name() == name) {
            // It was created, but the status could not be written.
            self.status.last_schedule_time = Some(Time(due));
            return;
        }
        let deadline = self.deadline();
        if deadline.is_some_and(|deadline| due < deadline) {
            let message = format!("Missed scheduled time to start a job: {due}");
            self.plan.notice = Some(event(Severity::Warning, "MissSchedule", message));
            return;
        }
        let running = self.jobs.iter().filter(|job| end(job).is_none());
        match self.cron.spec.concurrency_policy() {
            ConcurrencyPolicy::Forbid if running.clone().next().is_some() => {
                let message = format!(
                    "Not starting job {name} because prior execution is running and concurrency policy is Forbid"
                );
                self.plan.notice = Some(event(Severity::Normal, "JobAlreadyActive", message));
                return;
            }
            ConcurrencyPolicy::Replace => {
                self.plan.replace = running
                    .filter(|job| !job.is_deleting())
                    .map(|job| job_ref(job))
                    .collect();
            }
            _ => {}
        }
        for job in self.plan.replace.clone() {
            self.status
                .active
                .retain(|active| active.uid.as_ref() != Some(&job.uid));
            self.deleted(&job);
        }
        if is_more_than(
            MANY,
            schedule,
            deadline.map_or(before, |deadline| before.max(deadline)),
            now,
        ) {
            let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.publish(Severity::Warning, "TooManyMissedTimes", message);
        }
        self.publish(
            Severity::Normal,
            "SuccessfulCreate",
            format!("Created job {name}"),
        );
        self.plan.create = Some(Box::new(job(self.cron, &name, due)));
        self.status.last_schedule_time = Some(Time(due));
    }

    /// When the last job was started. Before the first one, when the RayCronJob was created.
    fn last_start(&self) -> Timestamp {
        let created = self.cron.metadata.creation_timestamp.as_ref();
        let last = self.status.last_schedule_time.as_ref().or(created);
        last.map_or(self.observed.now, |time| time.0)
    }

    /// A start before this time is missed. Scheduled times have no fractions of seconds.
    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.cron.spec.starting_deadline_seconds?;
        let earliest = self.observed.now.as_second().saturating_sub(seconds);
        Some(Timestamp::from_second(earliest).unwrap_or(Timestamp::MIN))
    }

    /// Deletes the oldest ended jobs above the history limits.
    fn forget(&mut self) {
        let spec = &self.cron.spec;
        for (how, kept) in [
            (End::Succeeded, spec.successful_kept()),
            (End::Failed, spec.failed_kept()),
        ] {
            let ended: Vec<&&RayJob> = self.jobs.iter().filter(|job| end(job) == Some(how)).collect();
            let kept = usize::try_from(kept).unwrap_or(0);
            let surplus = ended.iter().take(ended.len().saturating_sub(kept));
            let surplus = surplus.filter(|job| !job.is_deleting()).map(|job| job_ref(job));
            self.plan.forget.extend(surplus);
        }
        for job in self.plan.forget.clone() {
            self.deleted(&job);
        }
    }

    fn deleted(&mut self, job: &JobRef) {
        let message = format!("Deleted job {}", job.name);
        self.publish(Severity::Normal, "SuccessfulDelete", message);
    }

    fn finish(mut self) -> CronPlan {
        self.status.observed_generation = self.cron.metadata.generation.unwrap_or(0);
        if self.cron.status.as_ref() != Some(&self.status) {
            self.plan.status = Some(Box::new(self.status));
        }
        self.plan
    }
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed,
}

impl End {
    /// The condition of a Kubernetes Job with the same meaning.
    fn condition(self) -> &'static str {
        match self {
            Self::Succeeded => "Complete",
            Self::Failed => "Failed",
        }
    }
}

/// How a job has ended, if it has. A stopped job has not succeeded, and a job with an invalid spec
/// never will.
fn end(job: &RayJob) -> Option<End> {
    let status = job.status.as_ref()?;
    match status.job_deployment_status.as_ref()? {
        Phase::Complete if status.job_status == "SUCCEEDED" => Some(End::Succeeded),
        Phase::Complete | Phase::Failed | Phase::ValidationFailed => Some(End::Failed),
        _ => None,
    }
}

/// True if there are more than `many` starts after one time and until another.
fn is_more_than(many: usize, schedule: &Schedule, after: Timestamp, until: Timestamp) -> bool {
    let starts = std::iter::successors(schedule.next(after), |start| schedule.next(*start));
    starts.take_while(|start| *start <= until).nth(many).is_some()
}

fn reference(job: &RayJob) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("RayJob".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn job_ref(job: &RayJob) -> JobRef {
    JobRef {
        name: job.name().to_owned(),
        uid: job.uid_str().to_owned(),
    }
}
