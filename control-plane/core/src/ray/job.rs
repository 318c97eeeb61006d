//! Decisions about one RayJob.
//!
//! ```text
//!  (new) ──> Initializing ──> Running ──> Complete
//!    │            │  ^           │
//!    │            │  └─ Retrying <┤ the attempt failed, and one is left
//!    │            └──────────────┴──> Failed
//!    └──> ValidationFailed          (a deadline is never retried)
//!  any that is not an end ──> Suspending ──> Suspended ──> Initializing
//! ```
//!
//! Promises:
//! - Ids follow from the RayJob's UID and the attempt, and are in the status before they are used.
//!   So each attempt is submitted once, whatever crashes.
//! - An attempt belongs to one run of Ray, its session, and is submitted to no other. The next
//!   attempt waits for another session. So attempts never overlap, and a restarted head is noticed.
//! - If the submitter and the dashboard disagree, the dashboard is right.

mod attempt;
mod end;
mod follow;
mod gone;
mod initialize;
mod plan;
mod retry;
mod status_annotation;
mod unready_head;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::ray::conditions::{UNSUPPORTED_FIELDS, reasons};
use lockstep_api::ray::{RayJob, RayJobDeploymentStatus as Phase, RayJobStatus};

pub use attempt::is_begun;
pub(super) use attempt::{first_cluster, owner};
pub use plan::{JobPlan, ObservedJob, Pods, Ray, RayInfo};
pub use status_annotation::{Recalled, recall};
pub use unready_head::head_failures;

use self::attempt::{cluster_name, job_id, last_id};
use self::plan::has_ended;
use super::cluster::MANAGED_BY_ANOTHER;
use super::refusal::{Refusal, event};
use super::validation::{self, unsupported_annotation};
use crate::jobset::owner::is_controlled_by;
use crate::jobset::plan::Severity;

/// Finalizer that keeps a RayJob until its job is stopped.
pub const FINALIZER: &str = "ray.io/rayjob-finalizer";
/// Time between two requests to the dashboard.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// How long a job's end waits for a submitter that still prints the driver's output.
const SHOWN: SignedDuration = SignedDuration::from_secs(60);
/// Time between two requests to a dashboard that has not answered for long. Each request takes a
/// while, and delays others.
const SLOWEST: SignedDuration = SignedDuration::from_secs(15);

/// How soon to ask a dashboard again that has not answered as expected for this long.
fn pace(waited: SignedDuration) -> SignedDuration {
    (waited / 10).clamp(POLL, SLOWEST)
}

/// The question to ask the dashboard: its address, and the id of the job. `None` if there is
/// nothing to ask.
#[must_use]
pub fn question(job: &RayJob) -> Option<(&str, String)> {
    let status = job.status.as_ref()?;
    let asks = match status.job_deployment_status.as_ref()? {
        Phase::Initializing | Phase::Running | Phase::Retrying => true,
        // An abandoned attempt may still run.
        Phase::Failed => !has_ended(&status.job_status),
        _ => false,
    };
    (asks && !status.dashboard_url.is_empty()).then(|| (status.dashboard_url.as_str(), last_id(job, status)))
}

/// Decides what to do about a RayJob.
#[must_use]
pub fn plan(observed: &ObservedJob) -> JobPlan {
    let mut draft = Draft::new(observed);
    let job = &*observed.job;
    let has_finalizer = job
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == FINALIZER);
    if job.is_deleting() {
        // KubeRay's finalizer has the same name. If its controller is gone, no other controller
        // removes it.
        if has_finalizer && (is_begun(job) || draft.left_to_another().is_none()) {
            draft.finalize();
        }
        return draft.plan;
    }
    if let Some(message) = draft.not_ours() {
        draft.plan.notice = Some(event(Severity::Warning, MANAGED_BY_ANOTHER, message));
        return draft.plan;
    }
    let phase = draft.status.job_deployment_status.clone();
    let is_live = matches!(
        phase,
        Some(Phase::Initializing | Phase::Running | Phase::Retrying)
    );
    if !has_finalizer && (phase.is_none() || is_live) {
        draft.plan.add_finalizer = true;
        return draft.plan;
    }
    if is_live && job.spec.is_suspended() && !draft.has_ended_in_time() {
        draft.enter(Phase::Suspending);
        return draft.finish();
    }
    if is_live && !draft.has_ended_in_time() && draft.is_past_deadline() {
        return draft.finish();
    }
    if is_live && draft.status.observed_generation != draft.generation() {
        draft.name_unsupported();
    }
    match phase {
        None => draft.start(),
        Some(Phase::ValidationFailed) => {
            if draft.status.observed_generation != draft.generation() {
                draft.start();
            }
        }
        Some(Phase::Suspended) => {
            if !job.spec.is_suspended() {
                draft.start();
            }
        }
        Some(Phase::Suspending) => draft.suspend(),
        Some(Phase::Initializing) => draft.initialize(),
        Some(Phase::Running) => draft.follow(),
        Some(Phase::Retrying) => draft.retry(),
        Some(Phase::Complete | Phase::Failed) => draft.clean_up(),
        Some(Phase::Other(_)) => {}
    }
    draft.finish()
}

/// The plan for a RayJob if the API server refuses to create `what`: it only shows why. The rest of
/// the original plan was not carried out.
#[must_use]
pub fn refused(observed: &ObservedJob, what: &str, why: &str) -> JobPlan {
    let mut draft = Draft::new(observed);
    draft.wait_for(format!("{what} can be created: {why}"));
    draft.finish()
}

/// A plan in the making.
struct Draft<'a> {
    observed: &'a ObservedJob,
    job: &'a RayJob,
    /// The dashboard's answer, as far as it is credible.
    ray: &'a Ray,
    status: RayJobStatus,
    plan: JobPlan,
}

impl<'a> Draft<'a> {
    fn new(observed: &'a ObservedJob) -> Self {
        let status = observed.job.status.clone().unwrap_or_default();
        let knows_sessions = !status.session.is_empty() || !status.previous_session.is_empty();
        let ray = match &observed.ray {
            // It has named its session before. An answer without one does not come from Ray.
            Ray::Reached { session, .. } if session.is_empty() && knows_sessions => &Ray::Unreachable,
            ray => ray,
        };
        Self {
            observed,
            job: &observed.job,
            ray,
            status,
            plan: JobPlan::default(),
        }
    }

    fn generation(&self) -> i64 {
        self.job.metadata.generation.unwrap_or(0)
    }

    fn now(&self) -> Time {
        Time(self.observed.now)
    }

    /// How long ago this was; zero without a time.
    fn since(&self, time: Option<&Time>) -> SignedDuration {
        time.map_or(SignedDuration::ZERO, |time| {
            self.observed.now.duration_since(time.0)
        })
    }

    /// True if Ray reports, or has reported, that the running job has ended. That comes before
    /// deadlines and suspension, however late it is noticed.
    fn has_ended_in_time(&self) -> bool {
        let runs = self.status.job_deployment_status == Some(Phase::Running);
        let is_told = matches!(
            self.ray,
            Ray::Reached { session, job: Some(info) } if *session == self.status.session && info.has_ended()
        );
        runs && (is_told || has_ended(&self.status.job_status))
    }

    fn owns(&self, meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> bool {
        is_controlled_by(meta, self.job.uid_str())
    }

    /// Why nothing is done about the job.
    fn not_ours(&self) -> Option<String> {
        let is_kuberays =
            !self.status.ray_cluster_name.is_empty() && !is_begun(self.job) && !self.job.is_claimed();
        self.left_to_another().or_else(|| {
            // Its pods run even while that controller does not.
            is_kuberays.then(|| {
                format!(
                    "KubeRay's controller has begun this job: set spec.managedBy to {} to hand it to Lockstep",
                    lockstep_api::ray::CONTROLLER_NAME
                )
            })
        })
    }

    /// Which other controller manages the job now, if any.
    fn left_to_another(&self) -> Option<String> {
        if let Some(manager) = self.job.managed_by_another() {
            return Some(format!(
                "spec.managedBy is {manager}: that controller manages this job"
            ));
        }
        let open = !self.job.is_claimed() && !is_begun(self.job);
        (self.observed.kuberay && open).then(|| {
            format!(
                "KubeRay's controller runs here and manages this job: set spec.managedBy to {} to hand it to Lockstep",
                lockstep_api::ray::CONTROLLER_NAME
            )
        })
    }

    fn requeue(&mut self, after: SignedDuration) {
        let soonest = self.plan.requeue_after.map_or(after, |before| before.min(after));
        self.plan.requeue_after = Some(soonest.max(SignedDuration::from_millis(100)));
    }

    /// Schedules the next request to the dashboard.
    fn poll(&mut self) {
        self.requeue(pace(self.since(self.status.unreachable_since.as_ref())));
    }

    fn publish(&mut self, severity: Severity, reason: &str, message: impl Into<String>) {
        self.plan.events.push(event(severity, reason, message));
    }

    fn enter(&mut self, phase: Phase) {
        self.publish(Severity::Normal, phase.as_str(), format!("The job is {phase}"));
        self.status.job_deployment_status = Some(phase);
    }

    /// Begins the first attempt, unless the spec is invalid or suspended.
    fn start(&mut self) {
        self.name_unsupported();
        let violations = validation::job(self.job);
        if !violations.is_empty() {
            let Refusal { reason, message } = Refusal::invalid("RayJob", &violations);
            self.publish(Severity::Warning, &reason, message.clone());
            self.status.job_deployment_status = Some(Phase::ValidationFailed);
            self.status.reason = "ValidationFailed".to_owned();
            self.status.message = message;
            return;
        }
        self.status = RayJobStatus {
            conditions: std::mem::take(&mut self.status.conditions),
            ..RayJobStatus::default()
        };
        if self.job.spec.is_suspended() {
            return self.enter(Phase::Suspended);
        }
        self.status.job_id = job_id(self.job, 0);
        self.status.ray_cluster_name = cluster_name(self.job, 0);
        self.status.start_time = Some(self.now());
        self.enter(Phase::Initializing);
    }

    /// Reports ignored fields in a condition and an event, once.
    fn name_unsupported(&mut self) {
        let annotations = self.job.metadata.annotations.as_ref();
        let mut paths = self.job.spec.unsupported("spec");
        paths.extend(unsupported_annotation(annotations));
        let message = format!("not supported, and ignored: {}", paths.join(", "));
        let is_said = |condition: &Condition| condition.message == message;
        let conditions = &mut self.status.conditions;
        conditions.retain(|condition| condition.type_ != UNSUPPORTED_FIELDS || is_said(condition));
        if paths.is_empty() || conditions.iter().any(is_said) {
            return;
        }
        self.publish(Severity::Warning, UNSUPPORTED_FIELDS, message.clone());
        self.status.conditions.push(Condition {
            type_: UNSUPPORTED_FIELDS.to_owned(),
            status: "True".to_owned(),
            reason: reasons::IGNORED.to_owned(),
            message,
            last_transition_time: self.now(),
            observed_generation: Some(self.generation()),
        });
    }

    fn finish(mut self) -> JobPlan {
        self.status.observed_generation = self.generation();
        if let Some(cluster) = &self.observed.cluster {
            self.status.ray_cluster_status.clone_from(&cluster.status);
        }
        self.status.restarts_before.get_or_insert(0);
        let is_news = self.job.status.as_ref() != Some(&self.status);
        let is_whole = self.observed.is_whole;
        if is_news {
            self.plan.status_annotation = status_annotation::value(self.job, &self.status, is_whole);
        }
        if is_news || self.observed.is_behind {
            self.plan.status = Some(Box::new(self.status));
        } else {
            // The status has everything that the annotation has. Both cannot be written at once:
            // each write conflicts with the other.
            self.plan.forget = is_whole && status_annotation::is_there(self.job);
        }
        self.plan
    }
}
