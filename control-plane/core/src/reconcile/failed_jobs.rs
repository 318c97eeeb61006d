//! Carries out the failure policy for failed Jobs.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    InPlaceKind, InPlacePhase, InPlaceRestartStatus, JobSet, ReplicatedJob, ReplicatedJobStatus,
    RestartLevel, conditions, labels,
};

use super::mode::RestartMode;
use super::{INVALID_PATTERN, report_violations};
use crate::jobset::failure_policy::{self, Decision};
use crate::{
    common::patterns::Patterns,
    common::violation::Violation,
    jobset::active,
    jobset::children::{Children, label},
    jobset::execution_policy,
    jobset::in_place,
    jobset::observed::Observed,
    jobset::plan::{Plan, Severity},
    jobset::status::{Draft, NewCondition},
};

/// Applies the failure policy to failed Jobs. Returns false if no Job has failed.
pub(super) fn answer(
    observed: &Observed,
    children: &Children<'_>,
    mode: &RestartMode,
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) -> bool {
    let jobset = &*observed.jobset;
    let counts = draft.status.replicated_jobs_status.clone();
    let counted = match &draft.status.in_place_restart {
        // Restarts in place and recreations are counted together, by the group's coordinator.
        Some(in_place) if mode.is_coordinated_or_was() => in_place.restarts,
        _ => draft.status.restarts_count_towards_max,
    };
    let of_single_jobs = if observed.features.restart_job {
        restarts_of_single_jobs(&counts)
    } else {
        0
    };
    let counted = counted.saturating_add(of_single_jobs);
    let failed: Vec<&Job> = failed(jobset, children, &counts).collect();
    let patterns = patterns(observed, &failed);
    // These bypassed the webhook.
    let refused: Vec<Violation> = patterns.refused().cloned().into_iter().collect();
    report_violations(INVALID_PATTERN, &refused, plan);
    let decision = failure_policy::decide(
        jobset,
        &patterns,
        &failed,
        counted,
        &observed.features,
        mode.recreation_scope(),
    );
    let Some(decision) = decision else {
        return false;
    };
    let kind = match mode.coordinated_before() {
        Some(kind) => Some(kind.clone()),
        None => in_place::mode_of_new_jobs(jobset, &observed.agents)
            .filter(|_| mode.coordinated().is_some())
            .map(|in_place| in_place.kind),
    };
    let before = draft.status.restarts;
    apply(jobset, decision, kind, draft);
    if draft.status.restarts != before {
        active::note_recreation(observed, draft);
    }
    true
}

/// The failure policy's patterns. Compiled only if a Job has failed.
pub(super) fn patterns(observed: &Observed, failed: &[&Job]) -> Arc<Patterns> {
    match &observed.patterns {
        Some(patterns) => Arc::clone(patterns),
        None if failed.is_empty() => Arc::default(),
        None => Arc::new(Patterns::of(&observed.jobset)),
    }
}

/// The Jobs whose failure the failure policy decides about.
pub(super) fn failed<'a>(
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

/// Carries out a decision of the failure policy. `kind` is how the group restarts in place with its
/// new Jobs, if it has a coordinator.
pub(super) fn apply(jobset: &JobSet, decision: Decision, kind: Option<InPlaceKind>, draft: &mut Draft<'_>) {
    match decision {
        Decision::RestartJob {
            replicated_job,
            index,
            counts_towards_max,
            message,
            event,
        } => {
            let replicas = jobset
                .replicated_job(&replicated_job)
                .map_or(0, ReplicatedJob::replicas);
            let all = draft.status.replicated_jobs_status.iter_mut();
            for status in all.filter(|status| status.name == replicated_job) {
                count_restart(&mut status.job_restarts, index, replicas);
                if counts_towards_max {
                    count_restart(&mut status.job_restarts_count_towards_max, index, replicas);
                }
            }
            draft.event(Severity::Warning, &event, message);
        }
        Decision::Fail { reason, message } => draft.fail(reason, &message),
        Decision::Restart {
            counts_towards_max,
            reason,
            message,
            event,
        } => {
            let status = &mut draft.status;
            status.restarts = status.restarts.saturating_add(1);
            status.gangs.clear();
            status.completed_jobs.clear();
            let counted = &mut status.restarts_count_towards_max;
            *counted = counted.saturating_add(i32::from(counts_towards_max));
            if let Some(kind) = kind {
                recreate_group(
                    draft.status.in_place_restart.get_or_insert_default(),
                    kind,
                    counts_towards_max,
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

/// Counts one more restart of a Job, in a list with one number for each Job.
fn count_restart(restarts: &mut Vec<i32>, index: usize, replicas: i32) {
    let length = usize::try_from(replicas).unwrap_or(0);
    if restarts.len() < length {
        restarts.resize(length, 0);
    }
    if let Some(count) = restarts.get_mut(index) {
        *count = count.saturating_add(1);
    }
}

/// New workers get a new generation (restart protocol, rule 11).
fn recreate_group(in_place: &mut InPlaceRestartStatus, kind: InPlaceKind, counts_towards_max: bool) {
    in_place.kind = Some(kind);
    in_place.generation = in_place.generation.max(in_place.latest).saturating_add(1);
    in_place.latest = 0;
    in_place.worker_restarts.clear();
    in_place.restarts = in_place.restarts.saturating_add(i32::from(counts_towards_max));
    in_place.started.clear();
    in_place.joined.clear();
    in_place.phase = Some(InPlacePhase::Recreating);
    in_place.level = Some(RestartLevel::Recreate);
}
