//! The order of decisions about a JobSet, which is upstream's:
//!
//! 1. being deleted: do nothing; managed by another controller: delete it once it has finished and
//!    its TTL has expired
//! 2. count the Jobs, including those that have completed and are gone ([`completed`])
//! 3. finished: delete what still runs, and the JobSet once its TTL has expired
//! 4. delete the Jobs of earlier runs
//! 5. all Jobs ready: no longer restarting
//! 6. active for longer than its deadline, and the success policy is not met: fail
//! 7. a Job has failed: apply the failure policy, and stop
//! 8. a Job has succeeded: apply the success policy, and stop if it is met
//! 9. Service, claims, missing Jobs, suspend or resume, and reports of upstream's in-place restart
//!    agents
//!
//! Nothing is created for a JobSet that is over the limits ([`limits`]): it fails if it has no
//! Jobs, and stops after the second step otherwise.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    InPlaceKind, InPlacePhase, JobSet, JobSetStatus, ReplicatedJob, ReplicatedJobStatus,
    conditions::{messages, reasons},
    labels,
};

use crate::{
    admission::validation,
    common::patterns::Patterns,
    common::violation::{INVALID_JOBSET, Violation},
    gang,
    jobset::active,
    jobset::children::{Children, failure, label},
    jobset::completed,
    jobset::elastic,
    jobset::in_place,
    jobset::limits,
    jobset::network,
    jobset::observed::Observed,
    jobset::plan::{Event, JobRef, Plan, Severity},
    jobset::startup,
    jobset::startup::Graph,
    jobset::status::{self, Draft},
    jobset::success_policy,
    jobset::upstream_agent,
    jobset::upstream_agent::Verdict,
    jobset::volume_claims,
};

mod batch;
mod create;
mod failed_jobs;
pub(crate) mod jobs;
mod mode;
mod suspension;
mod too_large;
mod unsupervised;

use mode::RestartMode;

#[cfg(test)]
mod tests;

pub use too_large::JOBSET_TOO_LARGE;
pub use unsupervised::NOT_SUPERVISED;

/// Reason of the event about invalid annotations that the JobSet can do without.
pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
/// Reason of the event about a pattern of the failure policy that matches nothing.
pub const INVALID_PATTERN: &str = "InvalidPattern";
/// Reason of the event that says why a gang that asks for a PodGroup is started by gates.
pub const GANG_BACKEND_UNAVAILABLE: &str = "GangBackendUnavailable";

/// How many names can be compared in a millisecond or two.
const MANY_COMPARISONS: usize = 100_000;

/// Decides what to do about a JobSet.
#[must_use]
pub fn plan(observed: &Observed) -> Plan {
    let jobset = &*observed.jobset;
    let mut plan = Plan::default();
    if jobset.is_deleting() {
        return plan;
    }
    if !jobset.is_managed_here() {
        // Its manager may only copy the status from another cluster.
        if jobset.is_finished() {
            follow_ttl(jobset, observed.now, &mut plan);
        }
        return plan;
    }
    let unset = JobSetStatus::default();
    let before = jobset.status.as_ref().unwrap_or(&unset);
    let children = Children::sort(jobset, &observed.jobs, observed.features);
    let mut draft = Draft::new(before, observed.now);
    draft.status.replicated_jobs_status = status::replicated_jobs(jobset, &children, &observed.features);
    draft.status.completed_jobs = completed::record(jobset, before, &children);

    if jobset.is_finished() {
        plan.delete_jobs = to_delete(&children.active);
        follow_ttl(jobset, observed.now, &mut plan);
    } else {
        plan.delete_jobs = to_delete(&children.previous);
        decide(observed, &children, &mut draft, &mut plan);
    }
    draft.finish(&mut plan);
    plan
}

/// Deletes a finished JobSet once its TTL has expired.
fn follow_ttl(jobset: &JobSet, now: Timestamp, plan: &mut Plan) {
    match ttl_left(jobset, now) {
        Some(left) if !left.is_positive() => plan.delete_jobset = true,
        left => plan.requeue_after = left,
    }
}

/// The time until a finished JobSet is deleted, zero or less if it is due. `None` if it stays.
fn ttl_left(jobset: &JobSet, now: Timestamp) -> Option<SignedDuration> {
    let ttl = SignedDuration::from_secs(i64::from(jobset.spec.ttl_seconds_after_finished?));
    let finished = status::finished_at(jobset.status.as_ref()?)?;
    // In two steps, neither of which can overflow.
    Some(ttl.saturating_sub(now.duration_since(finished)))
}

/// True if a decision may take so long that others should not wait for it: a Job has failed, and
/// its message is compared with many names. All other decisions take a few milliseconds at most.
#[must_use]
pub fn may_take_long(observed: &Observed) -> bool {
    let jobset = &*observed.jobset;
    if jobset.is_finished() || !observed.jobs.iter().any(|job| failure(job).is_some()) {
        return false;
    }
    let policy = jobset.spec.failure_policy.as_ref();
    let rules = policy.map_or(&[][..], |policy| &policy.rules);
    let names = rules
        .iter()
        .map(|rule| 1 + rule.on_job_failure_reasons.len() + rule.target_replicated_jobs.len());
    let names: usize = names.sum();
    Patterns::are_stated(jobset) || names.saturating_mul(observed.jobs.len()) > MANY_COMPARISONS
}

/// Reports the faults of a JobSet that runs nevertheless.
fn report_violations(reason: &str, violations: &[Violation], plan: &mut Plan) {
    if !violations.is_empty() {
        plan.complaints.push(Event {
            severity: Severity::Warning,
            reason: reason.to_owned(),
            message: validation::message(violations),
        });
    }
}

/// The decisions about a JobSet that has not finished.
fn decide(observed: &Observed, children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) {
    if !may_run(observed, children, draft, plan) {
        return;
    }
    let jobset = &*observed.jobset;
    let in_place = in_place::mode(jobset, &observed.agents).filter(|_| observed.features.in_place_restart);
    if draft.is_first() {
        unsupervised::report_reasons(in_place.as_ref(), draft);
    }
    let counts = draft.status.replicated_jobs_status.clone();
    let reached = gang::reached(jobset, children, &observed.gang_pods, &counts);
    if !jobset.is_suspended() && status::all_ready(jobset, &reached) {
        draft.set_not_restarting(reasons::JOBS_READY, messages::JOBS_READY);
    }
    let mode = RestartMode::of(observed, in_place, &draft.status);
    note_mode(&mode, observed, draft, plan);
    let some_succeeded = reached.iter().any(|state| state.succeeded > 0);
    let has_succeeded = some_succeeded && success_policy::is_met(jobset, &reached, &counts);
    let becomes_active = active::keep_start_time(observed, draft);
    let time_left = active::time_left(observed, &draft.status);
    if !has_succeeded && time_left.is_some_and(|left| !left.is_positive()) {
        active::fail(observed, draft);
        return;
    }
    if let Some(message) = restarts_used_up(&mode, observed, &draft.status) {
        draft.fail(reasons::REACHED_MAX_RESTARTS, &message);
        return;
    }
    if failed_jobs::answer(observed, children, &mode, draft, plan) {
        return;
    }
    if has_succeeded {
        draft.complete();
        return;
    }
    // The status is written before anything else.
    let writes_first = active::note_run(observed, draft) || becomes_active;
    if !writes_first {
        run(observed, children, &reached, draft, plan);
    }
    plan.requeue_after = plan.requeue_after.into_iter().chain(time_left).min();
    if mode.follows_upstream() {
        follow_upstream_agents(observed, children, draft);
    }
}

/// Returns false if the JobSet is invalid or too large, and handles that.
fn may_run(observed: &Observed, children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) -> bool {
    let jobset = &*observed.jobset;
    // Annotations can change while it runs, and it can run without them.
    let mut needless = validation::in_place::annotations(jobset, &observed.features);
    // A JobSet that runs, or has run, was valid before, perhaps under other rules.
    if children.owned == 0 && jobset.restart_attempt() == 0 {
        let mut violations = validation::validate(jobset, &observed.features);
        if !draft.is_first() || draft.status.in_place_restart.is_some() {
            // An annotation was added or removed since. The JobSet runs without it.
            needless.extend(validation::in_place::jobs(jobset, &observed.features));
            violations.retain(|violation| !needless.contains(violation));
        }
        if !draft.is_first() && elastic::is_of_ray_cluster(jobset) {
            // Its groups have been scaled since their minimums were set.
            let mut outgrown = Vec::new();
            validation::gang::validate(jobset, &mut outgrown);
            violations.retain(|violation| !outgrown.contains(violation));
        }
        let (harmless, preventing): (Vec<_>, Vec<_>) = violations
            .into_iter()
            .partition(|violation| violation.is_harmless);
        if !preventing.is_empty() {
            draft.fail(INVALID_JOBSET, &validation::message(&preventing));
            return false;
        }
        report_violations(INVALID_JOBSET, &harmless, plan);
    } else if let Some(violation) = limits::violation(jobset) {
        too_large::stand_still(observed, &violation, children, draft, plan);
        return false;
    }
    report_violations(INVALID_ANNOTATION, &needless, plan);
    true
}

/// Records in the status what the restart mode requires.
fn note_mode(mode: &RestartMode, observed: &Observed, draft: &mut Draft<'_>, plan: &mut Plan) {
    if *mode == RestartMode::UpstreamAgents {
        let status = draft.status.in_place_restart.get_or_insert_default();
        status.kind = Some(InPlaceKind::UpstreamAgent);
    }
    if let Some(in_place) = mode.coordinated() {
        // The kind stays while Jobs exist, even if the annotation or the setting changes. Earlier
        // restarts without a coordinator count.
        let counted = draft.status.restarts_count_towards_max;
        let status = draft.status.in_place_restart.get_or_insert_default();
        if status.generation == 0 {
            status.restarts = status.restarts.max(counted);
        }
        status.kind.get_or_insert_with(|| in_place.kind.clone());
        plan.complaints.extend(unsupervised::missing_agents(observed));
    }
}

/// The message of the Failed condition, if `maxRestarts` is used up without a failed Job.
fn restarts_used_up(mode: &RestartMode, observed: &Observed, status: &JobSetStatus) -> Option<String> {
    mode.coordinated()?;
    gave_up(status).or_else(|| {
        // Only the kubelet has restarted its workers, so the container restarts in the API are the
        // only bound.
        let is_left_to_kubelet = matches!(mode, RestartMode::KubeletOnly(_));
        let too_often =
            is_left_to_kubelet && upstream_agent::restarted_too_often(&observed.jobset, &observed.agent_pods);
        too_often.then(|| messages::REACHED_MAX_RESTARTS.to_owned())
    })
}

/// Creates what is missing, and suspends or resumes.
fn run(
    observed: &Observed,
    children: &Children<'_>,
    reached: &[ReplicatedJobStatus],
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    plan.create_service = network::missing_service(observed).map(Box::new);
    plan.create_claims = volume_claims::missing(observed);
    if elastic::is_elastic(jobset, &observed.features) {
        plan.delete_jobs.extend(elastic::surplus(jobset, children));
        plan.change_jobs = elastic::changes(jobset, children);
    }
    let rollout = Rollout {
        graph: Graph::compile(jobset),
        reached,
        stopped: gang::stopped(jobset, children, draft),
    };
    create::jobs(observed, children, &rollout, draft, plan);
    startup::report(jobset, reached, draft);
    if jobset.is_suspended() {
        suspension::suspend(children, draft, plan);
    } else {
        suspension::resume(observed, children, &rollout, draft, plan);
    }
    let stopped = &rollout.stopped;
    draft.status.gangs.retain(|gang| !stopped.contains(&gang.name));
    let overruled = gang::overruled(jobset, observed.pod_groups);
    gang::report(jobset, children, &observed.gang_pods, overruled.as_deref(), draft);
    plan.complaints.extend(overruled.map(|message| Event {
        severity: Severity::Warning,
        reason: GANG_BACKEND_UNAVAILABLE.to_owned(),
        message,
    }));
}

/// The progress of the replicatedJobs, and what may start.
struct Rollout<'a> {
    graph: Graph<'a>,
    reached: &'a [ReplicatedJobStatus],
    /// Names of the gangs that are suspended as a whole.
    stopped: BTreeSet<String>,
}

/// Acts on the reports of upstream's agents in the JobSet's pods (KEP-467).
fn follow_upstream_agents(observed: &Observed, children: &Children<'_>, draft: &mut Draft<'_>) {
    let jobset = &*observed.jobset;
    // The group's coordinator has given up.
    draft.set_not_blocked(reasons::RESTART_UNBLOCKED, messages::RESTART_UNBLOCKED);
    let created = |replicated_job: &ReplicatedJob| {
        let jobs = children.active.iter().chain(&children.succeeded);
        jobs.into_iter()
            .any(|job| label(job, labels::REPLICATED_JOB_NAME) == Some(replicated_job.name.as_str()))
    };
    let pods = completed::with_pods_gone(children, &observed.agent_pods);
    match upstream_agent::judge(jobset, &draft.status, &pods, created) {
        Verdict::Wait => {}
        Verdict::GiveUp => draft.fail(reasons::REACHED_MAX_RESTARTS, messages::REACHED_MAX_RESTARTS),
        Verdict::Current(attempt) => {
            if draft.status.current_in_place_restart_attempt.is_some() {
                active::note_restart(observed, draft);
            }
            draft.status.current_in_place_restart_attempt = Some(attempt);
        }
        Verdict::Previous(attempt) => draft.status.previous_in_place_restart_attempt = Some(attempt),
    }
}

/// The message of the Failed condition, if the group's coordinator has used up `maxRestarts`.
fn gave_up(status: &JobSetStatus) -> Option<String> {
    let in_place = status.in_place_restart.as_ref()?;
    if in_place.phase != Some(InPlacePhase::Failed) {
        return None;
    }
    let cause = in_place
        .cause
        .as_ref()
        .and_then(|cause| cause.message.as_deref())
        .filter(|text| !text.is_empty());
    Some(match cause {
        Some(cause) => format!("{} (last failure: {cause})", messages::REACHED_MAX_RESTARTS),
        None => messages::REACHED_MAX_RESTARTS.to_owned(),
    })
}

/// True if a PodGroup starts the gang of a replicatedJob.
fn pod_groups(observed: &Observed, children: &Children<'_>, replicated_job: &ReplicatedJob) -> bool {
    let gang = gang::gang_name(&observed.jobset, &replicated_job.name);
    gang::goes_by_pod_group(children, gang, observed.pod_groups)
}

fn to_delete(jobs: &[&Job]) -> Vec<JobRef> {
    jobs.iter()
        .filter(|job| !is_deleting(job))
        .map(|job| JobRef::of(job))
        .collect()
}

fn is_deleting(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}
