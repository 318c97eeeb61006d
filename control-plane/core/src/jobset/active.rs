//! When a JobSet became active (`status.startTime`, KEP-1186), how long it may stay so, and how
//! often it became so (`status.executionAttempts`, KEP-1282).
//!
//! Promises: a restart in place of all workers starts the deadline again, as a recreation does. A
//! resumption is counted once, and the count is written before a Job is resumed.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{
    JobSetStatus,
    conditions::{self, reasons},
};

use crate::common::features::Features;
use crate::jobset::observed::Observed;
use crate::jobset::status::Draft;

#[cfg(test)]
mod tests;

/// Keeps the time since when the JobSet is active. A suspended JobSet has none. Nor has one while
/// the gate is off, since nobody would keep it. Returns true if the JobSet becomes active now: that
/// must be written before anything is done that may fail, or the time would never begin.
pub(crate) fn keep_start_time(observed: &Observed, draft: &mut Draft<'_>) -> bool {
    let status = &mut draft.status;
    if !observed.features.active_deadline || observed.jobset.is_suspended() {
        status.start_time = None;
        return false;
    }
    let becomes_active = status.start_time.is_none();
    let start = status.start_time.get_or_insert(Time(observed.now));
    // Before the first restart, a change of the phase says that the workers have come up.
    let group = status.in_place_restart.as_ref();
    let restarted = group.filter(|group| group.generation > 0);
    if let Some(last) = restarted.and_then(|group| group.last_transition_time.as_ref()) {
        start.0 = start.0.max(last.0);
    }
    becomes_active
}

/// Notes that all workers were restarted: the deadline starts again.
pub(crate) fn note_restart(observed: &Observed, draft: &mut Draft<'_>) {
    if observed.features.active_deadline {
        draft.status.start_time = Some(Time(observed.now));
    }
}

/// The time that is left to an active JobSet, zero or less if its deadline has passed. `None` if it
/// has no deadline.
pub(crate) fn time_left(observed: &Observed, status: &JobSetStatus) -> Option<SignedDuration> {
    if !observed.features.active_deadline {
        return None;
    }
    let deadline = SignedDuration::from_secs(observed.jobset.spec.active_deadline_seconds?);
    let start = status.start_time.as_ref()?;
    Some(deadline.saturating_sub(observed.now.duration_since(start.0)))
}

/// The JobSet was active for too long.
pub(crate) fn fail(observed: &Observed, draft: &mut Draft<'_>) {
    let seconds = observed.jobset.spec.active_deadline_seconds.unwrap_or_default();
    let message = format!("jobset was active longer than its activeDeadlineSeconds ({seconds})");
    draft.fail(reasons::DEADLINE_EXCEEDED, &message);
}

/// Notes that all Jobs are recreated: `status.restarts` was just raised.
pub(crate) fn note_recreation(observed: &Observed, draft: &mut Draft<'_>) {
    note_restart(observed, draft);
    let status = &mut draft.status;
    if observed.features.execution_attempts {
        let before = status.execution_attempts;
        let before = before.unwrap_or(status.restarts.saturating_sub(1));
        status.execution_attempts = Some(before.saturating_add(1));
    }
}

/// Notes that a JobSet runs for the first time, or again after a suspension. Returns true if that
/// must be written before its Jobs are resumed.
pub(crate) fn note_run(observed: &Observed, draft: &mut Draft<'_>) -> bool {
    if !observed.features.execution_attempts || observed.jobset.is_suspended() {
        return false;
    }
    let is_resumed = draft.status.is_true(conditions::SUSPENDED);
    draft.status.execution_attempts = match draft.status.execution_attempts {
        // It may have run before the gate was switched on.
        None => Some(draft.status.restarts),
        Some(attempts) if is_resumed => Some(attempts.saturating_add(1)),
        Some(_) => return false,
    };
    if is_resumed {
        draft.set_resumed();
    }
    is_resumed
}

/// The execution attempt that Jobs and pods are marked with.
pub(crate) fn execution_attempt(status: &JobSetStatus, features: &Features) -> Option<i32> {
    features
        .execution_attempts
        .then(|| status.execution_attempts.unwrap_or(0))
}
