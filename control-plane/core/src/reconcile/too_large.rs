//! A JobSet that has Jobs, or has run, and is larger than it may be: it is older than the limits,
//! or has come past the webhooks.
//!
//! Promises: its Jobs are left as they are, and nothing is made of it. What ends it ends it, it can
//! be suspended and deleted, and goes on where it is no longer too large. An event says so, with
//! the field.

use k8s_openapi::api::batch::v1::Job;

use super::failure_policy::{self, Decision, Restarts};
use super::failures::{apply, failed, patterns};
use super::suspension::suspend;
use crate::{
    common::violation::Violation,
    jobset::children::Children,
    jobset::observed::Observed,
    jobset::plan::{Event, Plan, Severity},
    jobset::status::Draft,
    jobset::success_policy,
};

/// Reason of the event that tells of a JobSet that is larger than it may be.
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
            "no Jobs are made, resumed or restarted, and those that there are stay as they are: {violation}"
        ),
    });
    // Those of an earlier run cannot be replaced either.
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
        Restarts::OfAllJobs,
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
