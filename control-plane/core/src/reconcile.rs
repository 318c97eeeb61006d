//! The order of decisions about a JobSet, which is upstream's:
//!
//! 1. being deleted, or managed by another controller: nothing
//! 2. count the Jobs, those that have completed and are gone with them ([`completed`])
//! 3. finished: delete what still runs, and the JobSet once its time is up
//! 4. delete the Jobs of earlier runs
//! 5. all Jobs ready: no longer restarting
//! 6. something failed: failure policy, and no further
//! 7. something succeeded: success policy, and no further if it is met
//! 8. Service, claims, missing Jobs, suspend or resume, and what upstream's in-place restart agents report
//!
//! Of a JobSet that is larger than it may be ([`limits`]) nothing is made: it fails where it has no
//! Jobs, and else stands still after the second step.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    GangPhase, InPlaceKind, InPlacePhase, InPlaceRestartStatus, JobSet, JobSetStatus, ReplicatedJob,
    ReplicatedJobStatus, RestartLevel, annotations,
    conditions::{self, messages, reasons},
    labels,
};
use lockstep_mutants::{self as mutants, Mutant};

use crate::{
    admission::validation,
    common::patterns::Patterns,
    common::violation::Violation,
    gang::{self, Marks},
    jobset::children::{Children, failure, label},
    jobset::completed,
    jobset::elastic,
    jobset::execution_policy,
    jobset::in_place::{self, Changed, InPlaceMode},
    jobset::limits,
    jobset::network,
    jobset::observed::Observed,
    jobset::plan::{Change, Event, JobChange, JobRef, Plan, Severity},
    jobset::resume,
    jobset::startup,
    jobset::startup::Graph,
    jobset::status::{self, Draft, NewCondition},
    jobset::success_policy,
    jobset::ttl,
    jobset::upstream_agent,
    jobset::upstream_agent::Verdict,
    jobset::volume_claims,
};

mod create;
pub(crate) mod failure_policy;
pub(crate) mod jobs;
mod too_large;

use failure_policy::Decision;

#[cfg(test)]
mod tests;

pub use too_large::JOBSET_TOO_LARGE;

/// Reason of the event that says why a JobSet restarts by container and not by process.
pub const NOT_SUPERVISED: &str = "RestartNotSupervised";

/// Reason of the event that tells of annotations that are wrong, and of which the JobSet has no need.
pub const INVALID_ANNOTATION: &str = "InvalidAnnotation";
/// Reason of the event that tells of a pattern of the failure policy that matches nothing.
pub const INVALID_PATTERN: &str = "InvalidPattern";
/// Reason of the event that tells why gates start a gang that asks for a PodGroup.
pub const GANG_BACKEND_UNAVAILABLE: &str = "GangBackendUnavailable";

/// Names that are compared in a millisecond or two.
const MANY_COMPARISONS: usize = 100_000;

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
    draft.status.replicated_jobs_status = status::replicated_jobs(jobset, &children, &observed.features);
    draft.status.completed_jobs = completed::record(jobset, before, &children);

    if jobset.is_finished() {
        plan.delete_jobs = to_delete(&children.active);
        match ttl::left(jobset, observed.now) {
            Some(left) if !left.is_positive() => plan.delete_jobset = true,
            left => plan.requeue_after = left,
        }
    } else {
        plan.delete_jobs = to_delete(&children.previous);
        decide(observed, &children, &mut draft, &mut plan);
    }
    draft.finish(&mut plan);
    plan
}

/// Whether to decide about it may take so long that others should not wait for it: a Job of it has
/// failed, and there is much to compare it with. Anything else takes a few milliseconds at the very
/// most.
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

/// Tells of what is wrong with a JobSet that runs all the same.
fn complain(reason: &str, violations: &[Violation], plan: &mut Plan) {
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
    let jobset = &*observed.jobset;
    // Annotations can be changed while it runs, and it has no need of any.
    let mut needless = validation::in_place::annotations(jobset, &observed.features);
    // A JobSet that runs, or has run, was found valid before, if perhaps by other rules.
    if children.owned == 0 && jobset.restarts() == 0 {
        let mut violations = validation::validate(jobset, &observed.features);
        if !draft.is_first() || draft.status.in_place_restart.is_some() {
            // An annotation has come or gone since: it ran without that.
            needless.extend(validation::in_place::jobs(jobset, &observed.features));
            violations.retain(|violation| !needless.contains(violation));
        }
        if !draft.is_first() && elastic::is_of_ray_cluster(jobset) {
            // Its groups have been scaled since their minimums were stated.
            let mut outgrown = Vec::new();
            validation::gang::validate(jobset, &mut outgrown);
            violations.retain(|violation| !outgrown.contains(violation));
        }
        let (harmless, preventing): (Vec<_>, Vec<_>) = violations
            .into_iter()
            .partition(|violation| violation.is_harmless);
        if !preventing.is_empty() {
            draft.fail(validation::INVALID_JOBSET, &validation::message(&preventing));
            return;
        }
        complain(validation::INVALID_JOBSET, &harmless, plan);
    } else if let Some(violation) = limits::violation(jobset) {
        too_large::stand_still(observed, &violation, children, draft, plan);
        return;
    }
    complain(INVALID_ANNOTATION, &needless, plan);
    let group = in_place::mode(jobset, &observed.agents).filter(|_| observed.features.in_place_restart);
    if draft.is_first() {
        tell_why_not_supervised(group.as_ref(), draft);
    }
    let in_place = group.is_some();
    let counts = draft.status.replicated_jobs_status.clone();
    let reached = gang::reached(jobset, children, &observed.gang_pods, &counts);
    if !jobset.is_suspended() && status::all_ready(jobset, &reached) {
        draft.set_not_restarting(reasons::JOBS_READY, messages::JOBS_READY);
    }
    let coordinates = group.as_ref().is_some_and(|group| group.level.is_some());
    let made_for = group.as_ref().map(|group| group.kind.clone());
    // Restarts in place and by recreation are counted together, by the group's coordinator.
    let brings_agents = group.is_some_and(|group| group.kind == InPlaceKind::UpstreamAgent);
    if brings_agents {
        let status = draft.status.in_place_restart.get_or_insert_default();
        status.kind = Some(InPlaceKind::UpstreamAgent);
    }
    let reports_upstream = upstream_agent::reports(&observed.agent_pods);
    let has_upstream_agents = brings_agents || in_place && (!observed.has_daemons || reports_upstream);
    let coordinated = in_place && !has_upstream_agents;
    // Its coordinator is away, with the hub or by its gate, and comes back to what was done meanwhile.
    let was_coordinated =
        !coordinated && !brings_agents && !reports_upstream && was_coordinated(&draft.status);
    if coordinated && let Some(kind) = made_for {
        // From when there are Jobs, whatever becomes of the annotation and of the setting. Restarts of before it was coordinated count on.
        let counted = draft.status.restarts_count_towards_max;
        let status = draft.status.in_place_restart.get_or_insert_default();
        if status.generation == 0 {
            status.restarts = status.restarts.max(counted);
        }
        status.kind.get_or_insert(kind);
    }
    if coordinated {
        plan.complaints.extend(lacks_agents(observed));
    }
    if coordinated && let Some(message) = gave_up(&draft.status) {
        draft.fail(reasons::REACHED_MAX_RESTARTS, &message);
        return;
    }
    // Nobody but kubelet has restarted anything of it, and what the API says of container restarts is all the bound that there is.
    let left_to_kubelet = coordinated && !observed.is_attended && !was_attended(&draft.status);
    if left_to_kubelet && upstream_agent::restarted_too_often(jobset, &observed.agent_pods) {
        draft.fail(reasons::REACHED_MAX_RESTARTS, messages::REACHED_MAX_RESTARTS);
        return;
    }
    let counted = match &draft.status.in_place_restart {
        Some(in_place) if coordinated || was_coordinated => in_place.restarts,
        _ => draft.status.restarts_count_towards_max,
    };
    let of_single_jobs = if observed.features.restart_job {
        restarts_of_single_jobs(&counts)
    } else {
        0
    };
    let counted = counted.saturating_add(of_single_jobs);
    let failed: Vec<&Job> = failed(jobset, children, &counts).collect();
    // In a group all workers restart at a failure: its coordinator would see that of a Job made anew alone as another one, and count it again.
    // So would the next one, where there is none for a while.
    let together = coordinated && coordinates || was_coordinated;
    let patterns = patterns(observed, &failed);
    // One that no webhook has seen.
    let refused: Vec<Violation> = patterns.refused().cloned().into_iter().collect();
    complain(INVALID_PATTERN, &refused, plan);
    let decision = failure_policy::decide(jobset, &patterns, &failed, counted, &observed.features, together);
    if let Some(decision) = decision {
        let anew = if was_coordinated {
            let before = draft.status.in_place_restart.as_ref();
            before.and_then(|before| before.kind.clone())
        } else {
            let anew = in_place::mode_of_new_jobs(jobset, &observed.agents).filter(|_| coordinated);
            anew.map(|group| group.kind)
        };
        apply(jobset, decision, anew, draft);
        return;
    }
    let some_succeeded = reached.iter().any(|state| state.succeeded > 0);
    if some_succeeded && success_policy::is_met(jobset, &reached, &counts) {
        draft.complete();
        return;
    }
    plan.create_service = network::missing_service(observed).map(Box::new);
    plan.create_claims = volume_claims::missing(observed);
    if elastic::is_elastic(jobset, &observed.features) {
        plan.delete_jobs.extend(elastic::surplus(jobset, children));
        plan.change_jobs = elastic::changes(jobset, children);
    }
    let graph = Graph::compile(jobset);
    let stopped = gang::stopped(jobset, children, draft);
    create::jobs(observed, &graph, children, &reached, &stopped, draft, plan);
    startup::report(jobset, &reached, draft);
    if jobset.is_suspended() {
        suspend(children, draft, plan);
    } else {
        resume(observed, &graph, children, &reached, &stopped, draft, plan);
    }
    draft.status.gangs.retain(|gang| !stopped.contains(&gang.name));
    let overruled = gang::overruled(jobset, observed.pod_groups);
    gang::report(jobset, children, &observed.gang_pods, overruled.as_deref(), draft);
    plan.complaints.extend(overruled.map(|message| Event {
        severity: Severity::Warning,
        reason: GANG_BACKEND_UNAVAILABLE.to_owned(),
        message,
    }));
    if has_upstream_agents {
        follow_upstream_agents(observed, children, draft);
    }
}

/// The failure policy's patterns. They are compiled only if a Job has failed.
fn patterns(observed: &Observed, failed: &[&Job]) -> Arc<Patterns> {
    match &observed.patterns {
        Some(patterns) => Arc::clone(patterns),
        None if failed.is_empty() => Arc::default(),
        None => Arc::new(Patterns::of(&observed.jobset)),
    }
}

/// The Jobs whose failure is a matter of the failure policy.
fn failed<'a>(
    jobset: &JobSet,
    children: &Children<'a>,
    counts: &[ReplicatedJobStatus],
) -> impl Iterator<Item = &'a Job> {
    children.failed.iter().copied().filter(move |job| {
        let name = label(job, labels::REPLICATED_JOB_NAME).unwrap_or_default();
        !execution_policy::awaits_failure(jobset, name, counts)
    })
}

/// How many restarts of single Jobs count towards `maxRestarts`.
fn restarts_of_single_jobs(counts: &[ReplicatedJobStatus]) -> i32 {
    let all = counts
        .iter()
        .flat_map(|counts| &counts.job_restarts_count_towards_max);
    all.fold(0, |sum: i32, restarts| sum.saturating_add(*restarts))
}

/// Acts on what the agents that the JobSet brings along report (KEP-467).
fn follow_upstream_agents(observed: &Observed, children: &Children<'_>, draft: &mut Draft<'_>) {
    let jobset = &*observed.jobset;
    // The group's coordinator has given it up.
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
        Verdict::Current(attempt) => draft.status.current_in_place_restart_attempt = Some(attempt),
        Verdict::Previous(attempt) => draft.status.previous_in_place_restart_attempt = Some(attempt),
    }
}

/// Says once, when the Jobs are first made, what keeps the workers of an in-place JobSet from being restarted as processes.
fn tell_why_not_supervised(group: Option<&InPlaceMode>, draft: &mut Draft<'_>) {
    if let Some(group) = group
        && group.kind == InPlaceKind::Plain
    {
        let instead = match group.level {
            Some(_) => "workers are restarted by container, not as processes",
            None => "workers are not restarted in place, a failure recreates the Jobs",
        };
        let message = format!("{instead}: {}", group.reasons.join("; "));
        draft.event(Severity::Warning, NOT_SUPERVISED, message);
    }
}

/// Warns that pods of a Supervised group have no agents although their template allows it, and says what to do. The group stays Supervised, since its other
/// pods may have agents. Jobs are not recreated until a worker fails.
fn lacks_agents(observed: &Observed) -> Option<Event> {
    let Changed { job, obstacle } = observed.changed.as_ref()?;
    let by_template = in_place::mode_of_new_jobs(&observed.jobset, &observed.agents)?;
    if by_template.kind != InPlaceKind::Supervised {
        return None;
    }
    let condition = match in_place::level(&observed.jobset, &InPlaceKind::Plain) {
        Some(_) => "",
        None => ", restartPolicy: OnFailure and no rules of a container",
    };
    Some(Event {
        severity: Severity::Warning,
        reason: NOT_SUPERVISED.to_owned(),
        message: format!(
            "a failure recreates the Jobs: pods of Job {job} set {obstacle}, which their template does not, so a policy or a webhook of the cluster has changed \
             them. To have workers restarted by container instead, create the JobSet with the annotation {}: none{condition}",
            annotations::SUPERVISE
        ),
    })
}

/// Whether node daemons have started workers of it.
fn was_attended(status: &JobSetStatus) -> bool {
    let in_place = status.in_place_restart.as_ref();
    in_place.is_some_and(|in_place| !in_place.started.is_empty())
}

/// Whether the JobSet has ever been restarted, or could have been, by a coordinator of its group: it counts on there.
fn was_coordinated(status: &JobSetStatus) -> bool {
    let kind = status
        .in_place_restart
        .as_ref()
        .and_then(|status| status.kind.as_ref());
    matches!(kind, Some(InPlaceKind::Supervised | InPlaceKind::Plain))
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

/// Carries out what the failure policy has decided. Where its restarts are a coordinator's business too, `group` is what the JobSet becomes with new
/// Jobs.
fn apply(jobset: &JobSet, decision: Decision, group: Option<InPlaceKind>, draft: &mut Draft<'_>) {
    match decision {
        Decision::RestartJob {
            replicated_job,
            index,
            counts,
            message,
            event,
        } => {
            let replicas = jobset
                .replicated_job(&replicated_job)
                .map_or(0, ReplicatedJob::replicas);
            let all = draft.status.replicated_jobs_status.iter_mut();
            for status in all.filter(|status| status.name == replicated_job) {
                count_restart(&mut status.job_restarts, index, replicas);
                if counts {
                    count_restart(&mut status.job_restarts_count_towards_max, index, replicas);
                }
            }
            draft.event(Severity::Warning, &event, message);
        }
        Decision::Fail { reason, message } => draft.fail(reason, &message),
        Decision::Restart {
            counts,
            reason,
            message,
            event,
        } => {
            let status = &mut draft.status;
            status.restarts = status.restarts.saturating_add(1);
            status.gangs.clear();
            status.completed_jobs.clear();
            let counted = &mut status.restarts_count_towards_max;
            *counted = counted.saturating_add(i32::from(counts));
            if let Some(kind) = group {
                recreate_group(
                    draft.status.in_place_restart.get_or_insert_default(),
                    kind,
                    counts,
                );
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

/// Counts one more restart of a Job, in a list with one number for each.
fn count_restart(restarts: &mut Vec<i32>, index: usize, replicas: i32) {
    let length = usize::try_from(replicas).unwrap_or(0);
    if restarts.len() < length {
        restarts.resize(length, 0);
    }
    if let Some(count) = restarts.get_mut(index) {
        *count = count.saturating_add(1);
    }
}

/// New workers join a generation of their own (restart protocol, rule 11).
fn recreate_group(in_place: &mut InPlaceRestartStatus, kind: InPlaceKind, counts: bool) {
    in_place.kind = Some(kind);
    in_place.generation = in_place.generation.max(in_place.latest).saturating_add(1);
    in_place.latest = 0;
    in_place.worker_restarts.clear();
    in_place.restarts = in_place.restarts.saturating_add(i32::from(counts));
    in_place.started.clear();
    in_place.joined.clear();
    in_place.phase = Some(InPlacePhase::Recreating);
    in_place.level = Some(RestartLevel::Recreate);
}

/// Whether a PodGroup starts the gang that a replicatedJob belongs to, where it can.
fn pod_groups(observed: &Observed, children: &Children<'_>, replicated_job: &ReplicatedJob) -> bool {
    let gang = gang::gang_name(&observed.jobset, &replicated_job.name);
    gang::goes_by_pod_group(children, gang, observed.pod_groups)
}

fn suspend(children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) {
    suspend_jobs(children.active.iter().copied(), plan);
    // Their pods go: what is resumed starts together again.
    draft.status.gangs.clear();
    draft.set_condition(&NewCondition {
        severity: Severity::Normal,
        type_: conditions::SUSPENDED,
        status: true,
        reason: reasons::SUSPENDED_JOBS,
        message: messages::SUSPENDED_JOBS,
    });
    draft.set_not_restarting(reasons::JOBSET_SUSPENDED, messages::SUSPENDED_JOBS);
}

fn suspend_jobs<'a>(jobs: impl Iterator<Item = &'a Job>, plan: &mut Plan) {
    let running = jobs.filter(|job| !is_deleting(job) && !status::is_suspended(job));
    plan.change_jobs.extend(running.map(|job| JobChange {
        job: JobRef::of(job),
        change: Change::Suspend,
    }));
}

fn resume(
    observed: &Observed,
    graph: &Graph<'_>,
    children: &Children<'_>,
    reached: &[ReplicatedJobStatus],
    stopped: &BTreeSet<String>,
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    for stage in graph.stages.iter().filter(|stage| stage.may_run(reached)) {
        let replicated_job = stage.replicated_job;
        let own = |job: &&&Job| label(job, labels::REPLICATED_JOB_NAME) == Some(replicated_job.name.as_str());
        let own = || children.active.iter().filter(own).copied();
        let backs_off = gang::phase(jobset, draft, &replicated_job.name) == Some(&GangPhase::BackingOff);
        if backs_off && !mutants::is(Mutant::KeepWhatTimedOut) {
            suspend_jobs(own(), plan);
            continue;
        }
        let pods = &observed.gang_pods;
        if stopped.contains(gang::gang_name(jobset, &replicated_job.name))
            || gang::awaits_group(jobset, children, pods, draft, &replicated_job.name)
        {
            continue;
        }
        let pod_groups = pod_groups(observed, children, replicated_job);
        for job in own().filter(|job| !is_deleting(job) && status::is_suspended(job)) {
            if Marks::differ(jobset, replicated_job, job, pod_groups) {
                plan.delete_jobs.push(JobRef::of(job));
                continue;
            }
            plan.change_jobs.push(JobChange {
                job: JobRef::of(job),
                change: Change::Resume(Box::new(resume::merge(job, replicated_job))),
            });
        }
    }
    if !startup::is_in_progress(jobset, reached) {
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
        .map(|job| JobRef::of(job))
        .collect()
}

fn is_deleting(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}
