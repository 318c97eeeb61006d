//! Failed writes for gangs, and the events about them.
//!
//! Promises: failures are retried with growing pauses of at most half a minute. A lasting failure
//! causes one event, a short one none. Conflicts back off too, but cause no event. A failure is
//! forgotten when the same write succeeds, not when another one does, and not because it was not
//! due for a while.

use std::collections::HashMap;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::common::retry::rest;
use lockstep_core::jobset::plan::{Event, Severity};
use tokio::time::Instant;

use crate::k8s::apply::AGAIN;
use crate::k8s::retry::delay;

#[cfg(test)]
mod tests;

/// The longest wait after failures of one JobSet's writes.
const LONGEST: Duration = Duration::from_secs(30);
/// A failure that lasts longer than this causes an event. A restarted API server is usually back by
/// then.
const REPORT_AFTER: Duration = Duration::from_secs(15);
/// A failure this long after the last one begins a new streak.
const APART: Duration = Duration::from_secs(5 * 60);
/// A conflict this long after the last pause begins a new streak.
const IN_A_ROW: Duration = Duration::from_secs(5);
/// Event reason: a gang that waits has not started.
const NOT_STARTED: &str = "GangNotStarted";
/// Event reason: a gang runs, but a write for it failed, such as the gate of an optional worker.
const NOT_UPDATED: &str = "GangNotUpdated";

/// Failures by JobSet. Writes for these JobSets pause for a while.
#[derive(Default)]
pub(super) struct WriteFailures {
    by_jobset: HashMap<ObjectRef<JobSet>, JobSetFailures>,
}

/// What is written for a JobSet's gangs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteTarget {
    /// The status of the JobSet.
    Status,
    /// The gates of its pods.
    Gates,
    /// The PodGroup of this name.
    PodGroup(String),
}

/// A failed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What was to be written.
    pub(super) what: WriteTarget,
    /// Set once the gangs have started.
    pub(super) has_started: bool,
    /// The text of the event.
    pub(super) message: String,
}

#[derive(Default)]
struct JobSetFailures {
    uid: Option<String>,
    by_what: HashMap<WriteTarget, FailureStreak>,
    conflicts: Conflicts,
}

/// Consecutive conflicts: another client keeps writing the same objects.
#[derive(Default)]
struct Conflicts {
    count: u32,
    until: Option<Instant>,
}

/// Failures of the same write, with no success in between.
struct FailureStreak {
    count: u32,
    since: Instant,
    last: Instant,
    until: Instant,
    /// The last event's reason, and its time.
    last_event: Option<(&'static str, Instant)>,
}

impl FailureStreak {
    fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
            last: now,
            until: now,
            last_event: None,
        }
    }

    fn again(&mut self, now: Instant) {
        if now.duration_since(self.last) > APART {
            self.count = 0;
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.until = now + delay(self.count).min(LONGEST);
    }

    /// True if an event with this reason is due. A different message of the API server does not
    /// count as another failure.
    fn is_due(&mut self, reason: &'static str, now: Instant) -> bool {
        let known = |(last, at): (&str, Instant)| last == reason && now.duration_since(at) < AGAIN;
        let is_due = now.duration_since(self.since) >= REPORT_AFTER && !self.last_event.is_some_and(known);
        if is_due {
            self.last_event = Some((reason, now));
        }
        is_due
    }
}

impl JobSetFailures {
    /// The times until which writes pause.
    fn waits(&self) -> impl Iterator<Item = Instant> {
        let write_failures = self.by_what.values().map(|streak| streak.until);
        write_failures.chain(self.conflicts.until)
    }
}

impl WriteFailures {
    /// True if writes for the JobSet pause now.
    pub(super) fn keeps_off(&self, object: &ObjectRef<JobSet>) -> bool {
        let now = Instant::now();
        let of_jobset = self.by_jobset.get(object);
        of_jobset.is_some_and(|all| all.waits().any(|until| until > now))
    }

    /// Records a conflict. The first one is retried at once. Each further one in a row doubles the
    /// wait, up to a second.
    pub(super) fn conflicted(&mut self, object: &ObjectRef<JobSet>) {
        let conflicts = &mut self.by_jobset.entry(object.clone()).or_default().conflicts;
        if conflicts.until.is_some_and(|until| until.elapsed() > IN_A_ROW) {
            conflicts.count = 0;
        }
        conflicts.count = conflicts.count.saturating_add(1);
        conflicts.until = Some(Instant::now() + rest(conflicts.count));
    }

    /// Records that a task has ended without a conflict.
    pub(super) fn settled(&mut self, object: &ObjectRef<JobSet>) {
        if let Some(all) = self.by_jobset.get_mut(object) {
            all.conflicts = Conflicts::default();
            self.drop_empty(object);
        }
    }

    /// Counts a failure. Returns an event if one is due.
    pub(super) fn add(&mut self, jobset: &JobSet, failure: Failure) -> Option<Event> {
        let now = Instant::now();
        let all = self.by_jobset.entry(ObjectRef::from_obj(jobset)).or_default();
        // This may be another JobSet of the same name.
        if all.uid != jobset.metadata.uid {
            *all = JobSetFailures {
                uid: jobset.metadata.uid.clone(),
                ..JobSetFailures::default()
            };
        }
        // Each restart attempt has its own PodGroups: earlier ones are not tried again.
        all.by_what
            .retain(|_, streak| now.duration_since(streak.last) < AGAIN);
        let streak = all
            .by_what
            .entry(failure.what)
            .or_insert_with(|| FailureStreak::new(now));
        streak.again(now);
        let reason = if failure.has_started {
            NOT_UPDATED
        } else {
            NOT_STARTED
        };
        streak.is_due(reason, now).then(|| Event {
            severity: Severity::Warning,
            reason: reason.to_owned(),
            message: failure.message,
        })
    }

    /// Records that this write has succeeded.
    pub(super) fn worked(&mut self, object: &ObjectRef<JobSet>, what: &WriteTarget) {
        if let Some(all) = self.by_jobset.get_mut(object) {
            all.by_what.remove(what);
            self.drop_empty(object);
        }
    }

    fn drop_empty(&mut self, object: &ObjectRef<JobSet>) {
        let all = self.by_jobset.get(object);
        if all.is_some_and(|all| all.by_what.is_empty() && all.conflicts.count == 0) {
            self.by_jobset.remove(object);
        }
    }

    /// Forgets a JobSet that is gone.
    pub(super) fn forget(&mut self, object: &ObjectRef<JobSet>) {
        self.by_jobset.remove(object);
    }

    /// How soon a write is tried again.
    pub(super) fn next(&self) -> Option<Duration> {
        let now = Instant::now();
        let waits = self.by_jobset.values().flat_map(JobSetFailures::waits);
        let next = waits.filter(|until| *until > now).min();
        next.map(|until| until - now)
    }
}
