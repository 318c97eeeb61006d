//! The order of decisions about a JobSet, which is upstream's:
//!
//! 1. being deleted, or managed by another controller: nothing
//! 2. count the Jobs
//! 3. finished: delete what still runs, and the JobSet once its time is up
//! 4. delete the Jobs of earlier runs
//! 5. all Jobs ready: no longer restarting
//! 6. something failed: failure policy, and no further
//! 7. something succeeded: success policy, and no further if it is met
//! 8. Service, missing Jobs, suspend or resume

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    InPlaceKind, InPlacePhase, InPlaceRestartStatus, JobSet, JobSetStatus, RestartStrategy,
    conditions::{self, messages, reasons},
    labels,
};

use crate::{
    children::{Children, label},
    failure_policy::{self, Decision},
    in_place::{self, Group},
    jobset::Jobs,
    network,
    observed::Observed,
    plan::{Change, JobChange, JobRef, Plan, Severity},
    resume, startup,
    startup::Graph,
    status::{self, Draft, NewCondition},
    success_policy, ttl, validation,
};

#[cfg(test)]
mod tests;

/// Reason of the event that says why a JobSet restarts by container and not by process.
pub const NOT_SUPERVISED: &str = "RestartNotSupervised";

/// Decides what is to be done about a JobSet.
#[must_use]
pub fn plan(observed: &Observed) -> Plan {
    let jobset = &*observed.jobset;
    let mut plan = Plan::default();
    if jobset.is_deleting() || !jobset.is_managed_here() {
        return plan;
    }
    let unset = JobSetStatus::default();
    let before = jobset.status.as_ref().unwrap_or(&unset);
    let children = Children::sort(observed);
    let mut draft = Draft::new(before, observed.now);
    draft.status.replicated_jobs_status = status::replicated_jobs(jobset, &children);

    if jobset.is_finished() {
        plan.delete_jobs = to_delete(&children.active);
        match ttl::left(jobset, observed.now) {
            Some(left) if !left.is_positive() => {
                plan.delete_jobset = true;
                return plan;
            }
            left => plan.requeue_after = left,
        }
    } else {
        plan.delete_jobs = to_delete(&children.previous);
        decide(observed, &children, &mut draft, &mut plan);
    }
    draft.finish(&mut plan);
    plan
}

/// The decisions about a JobSet that has not finished.
fn decide(observed: &Observed, children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) {
    let jobset = &*observed.jobset;
    // A JobSet that runs was found valid before, if perhaps by other rules.
    if children.owned == 0 {
        let violations = validation::validate(jobset);
        if !violations.is_empty() {
            draft.fail(validation::INVALID_JOBSET, &validation::message(&violations));
            return;
        }
    }
    let group = in_place::group(jobset);
    if draft.is_first() {
        tell_why_not_supervised(group.as_ref(), draft);
    }
    let counts = draft.status.replicated_jobs_status.clone();
    if !jobset.is_suspended() && status::all_ready(jobset, &counts) {
        draft.set_not_restarting(reasons::JOBS_READY, messages::JOBS_READY);
    }
    // Restarts in place and by recreation are counted together, by the group's coordinator.
    let coordinated = group.is_some_and(|group| group.kind != InPlaceKind::UpstreamAgent);
    if coordinated && let Some(message) = gave_up(&draft.status) {
        draft.fail(reasons::REACHED_MAX_RESTARTS, &message);
        return;
    }
    let counted = match &draft.status.in_place_restart {
        Some(in_place) if coordinated => in_place.restarts,
        _ => draft.status.restarts_count_towards_max,
    };
    if let Some(decision) = failure_policy::decide(jobset, &children.failed, counted) {
        apply(decision, coordinated, draft);
        return;
    }
    if !children.succeeded.is_empty() && success_policy::is_met(jobset, children) {
        draft.complete();
        return;
    }
    plan.create_service = network::missing_service(observed).map(Box::new);
    let graph = Graph::compile(jobset);
    create_jobs(jobset, &graph, children, draft, plan);
    startup::report(jobset, &counts, draft);
    if jobset.is_suspended() {
        suspend(children, draft, plan);
    } else {
        resume(jobset, &graph, children, draft, plan);
    }
}

/// Says once, when the Jobs are first made, what keeps the workers of an in-place JobSet from being restarted as processes.
fn tell_why_not_supervised(group: Option<&Group>, draft: &mut Draft<'_>) {
    if let Some(group) = group
        && group.kind == InPlaceKind::Plain
    {
        let message = format!(
            "workers are not restarted in place, a failure recreates the Jobs: {}",
            group.reasons.join("; ")
        );
        draft.event(Severity::Warning, NOT_SUPERVISED, message);
    }
}

/// The group's coordinator has used up `maxRestarts`: the message of the Failed condition.
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

fn apply(decision: Decision, coordinated: bool, draft: &mut Draft<'_>) {
    match decision {
        Decision::Fail { reason, message } => draft.fail(reason, &message),
        Decision::Restart {
            counts,
            reason,
            message,
            event,
        } => {
            draft.status.restarts += 1;
            draft.status.restarts_count_towards_max += i32::from(counts);
            if coordinated {
                recreate_group(draft.status.in_place_restart.get_or_insert_default(), counts);
            }
            draft.set_condition(&NewCondition {
                severity: Severity::Warning,
                type_: conditions::RESTARTING_JOBSET,
                status: true,
                reason: &reason,
                message: &message,
            });
            draft.event(Severity::Warning, &event, message);
        }
    }
}

/// New workers join a generation of their own (restart protocol, rule 11).
fn recreate_group(in_place: &mut InPlaceRestartStatus, counts: bool) {
    in_place.generation += 1;
    in_place.restarts += i32::from(counts);
    in_place.started.clear();
    in_place.phase = Some(InPlacePhase::Recreating);
}

fn create_jobs(
    jobset: &JobSet,
    graph: &Graph<'_>,
    children: &Children<'_>,
    draft: &Draft<'_>,
    plan: &mut Plan,
) {
    let waits_for_all =
        jobset.restart_strategy() == RestartStrategy::BlockingRecreate && !children.previous.is_empty();
    if waits_for_all {
        return;
    }
    let jobs = Jobs::new(jobset);
    let counts = &draft.status.replicated_jobs_status;
    for stage in graph
        .stages
        .iter()
        .filter(|stage| stage.may_be_created(jobset.is_suspended(), counts))
    {
        for index in 0..stage.replicated_job.replicas() {
            let name = jobset.job_name(&stage.replicated_job.name, i64::from(index));
            if !children.taken.contains(name.as_str()) {
                plan.create_jobs.push(jobs.make(stage.replicated_job, index));
            }
        }
    }
}

fn suspend(children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) {
    let running = children
        .active
        .iter()
        .filter(|job| !is_deleting(job) && !status::is_suspended(job));
    plan.change_jobs.extend(running.map(|job| JobChange {
        job: job_ref(job),
        change: Change::Suspend,
    }));
    draft.set_condition(&NewCondition {
        severity: Severity::Normal,
        type_: conditions::SUSPENDED,
        status: true,
        reason: reasons::SUSPENDED_JOBS,
        message: messages::SUSPENDED_JOBS,
    });
    draft.set_not_restarting(reasons::JOBSET_SUSPENDED, messages::SUSPENDED_JOBS);
}

fn resume(
    jobset: &JobSet,
    graph: &Graph<'_>,
    children: &Children<'_>,
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) {
    let counts = draft.status.replicated_jobs_status.clone();
    for stage in graph.stages.iter().filter(|stage| stage.may_run(&counts)) {
        let suspended = children.active.iter().filter(|job| {
            !is_deleting(job)
                && status::is_suspended(job)
                && label(job, labels::REPLICATED_JOB_NAME) == Some(stage.replicated_job.name.as_str())
        });
        plan.change_jobs.extend(suspended.map(|job| JobChange {
            job: job_ref(job),
            change: Change::Resume(Box::new(resume::merge(job, stage.replicated_job))),
        }));
    }
    if !startup::is_in_progress(jobset, &counts) {
        draft.set_condition(&NewCondition {
            severity: Severity::Normal,
            type_: conditions::SUSPENDED,
            status: false,
            reason: reasons::RESUME_JOBS,
            message: messages::RESUME_JOBS,
        });
    }
}

fn to_delete(jobs: &[&Job]) -> Vec<JobRef> {
    jobs.iter()
        .filter(|job| !is_deleting(job))
        .map(|job| job_ref(job))
        .collect()
}

fn is_deleting(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn job_ref(job: &Job) -> JobRef {
    JobRef {
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
    }
}
