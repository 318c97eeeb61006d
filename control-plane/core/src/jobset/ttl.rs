//! `ttlSecondsAfterFinished`: when a finished JobSet is deleted.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::JobSet;

use crate::jobset::status::finished_at;

#[cfg(test)]
mod tests;

/// How long a finished JobSet has left, zero or less when its time is up. `None`: it stays.
pub(crate) fn left(jobset: &JobSet, now: Timestamp) -> Option<SignedDuration> {
    let ttl = SignedDuration::from_secs(i64::from(jobset.spec.ttl_seconds_after_finished?));
    let finished = finished_at(jobset.status.as_ref()?)?;
    // In two steps that cannot leave the range of time.
    Some(ttl.saturating_sub(now.duration_since(finished)))
}
