//! Which JobSets' gangs could not be written, and what their users are told of it.
//!
//! Promises: what fails is tried again ever more slowly, every half a minute at least; whoever waits for it is told why, once, and not of what lasts a moment.

use std::collections::HashMap;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::plan::{Event, Severity};
use tokio::time::Instant;

use crate::apply::Told;
use crate::retry::delay;

#[cfg(test)]
mod tests;

/// The longest wait after failures of one JobSet's writes.
const LONGEST: Duration = Duration::from_secs(30);
/// After so many failures in a row the user is told.
const TELL_FROM: u32 = 3;
const REASON: &str = "GangNotStarted";

/// Failures by JobSet: nothing is done for them for a while.
#[derive(Default)]
pub(super) struct Failures {
    by_jobset: HashMap<ObjectRef<JobSet>, InARow>,
    told: Told<JobSet>,
}

struct InARow {
    count: u32,
    until: Instant,
}

impl Failures {
    /// Whether nothing is to be done for the JobSet now.
    pub(super) fn keeps_off(&self, object: &ObjectRef<JobSet>) -> bool {
        let last = self.by_jobset.get(object);
        last.is_some_and(|last| last.until > Instant::now())
    }

    /// Counts one more. Returns what the user is to be told.
    pub(super) fn add(&mut self, jobset: &JobSet, failure: String) -> Option<Event> {
        let object = ObjectRef::from_obj(jobset);
        let count = self
            .by_jobset
            .get(&object)
            .map_or(1, |last| last.count.saturating_add(1));
        let until = Instant::now() + delay(count).min(LONGEST);
        self.by_jobset.insert(object, InARow { count, until });
        if count < TELL_FROM {
            return None;
        }
        let event = Event {
            severity: Severity::Warning,
            reason: REASON.to_owned(),
            message: failure,
        };
        self.told.news(jobset, vec![event]).pop()
    }

    /// It has worked, or the JobSet is gone.
    pub(super) fn forget(&mut self, object: &ObjectRef<JobSet>) {
        self.by_jobset.remove(object);
        self.told.forget(object);
    }

    /// How soon something is tried again.
    pub(super) fn next(&self) -> Option<Duration> {
        let now = Instant::now();
        let waits = self.by_jobset.values().map(|last| last.until);
        waits.filter(|until| *until > now).min().map(|until| until - now)
    }
}
