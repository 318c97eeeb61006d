//! A JobSet over the limits that has Jobs, or has run: it is older than the limits, or bypassed the
//! webhooks.
//!
//! Promises: its Jobs stay as they are, and nothing is created for it. It can still end, be
//! suspended and be deleted, and continues once it is within the limits. An event names the field.

use k8s_openapi::api::batch::v1::Job;

use super::failed_jobs::{apply, failed, patterns};
use super::suspension::suspend;
use crate::jobset::failure_policy::{self, Decision, RecreationScope};
use crate::{
    common::violation::Violation,
    jobset::children::Children,
    jobset::observed::Observed,
    jobset::plan::{Event, Plan, Severity},
    jobset::status::Draft,
    jobset::success_policy,
};

/// Reason of the event about a JobSet that is over the limits.
pub const JOBSET_TOO_LARGE: &str = "JobSetTooLarge";

pub(super) fn stand_still(
    observed: &Observed,
    violation: &Violation,
    children: &Children<'_>,
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    plan.complaints.push(Event {
        severity: Severity::Warning,
        reason: JOBSET_TOO_LARGE.to_owned(),
        message: format!(
            "no Jobs are created, resumed or restarted, and existing Jobs stay as they are: {violation}"
        ),
    });
    // Jobs of earlier runs cannot be replaced either.
    plan.delete_jobs.clear();
    let restarts = draft
        .status
        .in_place_restart
        .as_ref()
        .map_or(0, |status| status.restarts);
    let counted = draft.status.restarts_count_towards_max.max(restarts);
    let counts = draft.status.replicated_jobs_status.clone();
    let failed: Vec<&Job> = failed(jobset, children, &counts).collect();
    let patterns = patterns(observed, &failed);
    let decided = failure_policy::decide(
        jobset,
        &patterns,
        &failed,
        counted,
        &observed.features,
        RecreationScope::AllJobs,
    );
    if let Some(end @ Decision::Fail { .. }) = decided {
        apply(jobset, end, None, draft);
        return;
    }
    let some_succeeded = counts.iter().any(|state| state.succeeded > 0);
    if some_succeeded && success_policy::is_met(jobset, &counts, &counts) {
        draft.complete();
    } else if jobset.is_suspended() {
        suspend(children, draft, plan);
    }
}
