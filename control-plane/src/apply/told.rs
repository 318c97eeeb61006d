//! What has been told of JobSets, so that what goes on is not told again at each look.
//!
//! Promises: what is new, or was away and is back, is told at once; what stays is told again only when the event about it may be gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::plan::Event;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// The API server keeps events for an hour, unless it is told otherwise.
const AGAIN: Duration = Duration::from_secs(30 * 60);

/// What goes on with JobSets, and when it was told.
#[derive(Default)]
pub(crate) struct Told {
    by_jobset: Mutex<HashMap<ObjectRef<JobSet>, OfJobSet>>,
}

/// What goes on with one JobSet.
struct OfJobSet {
    uid: String,
    events: Vec<(Event, Instant)>,
}

impl Told {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<JobSet>, OfJobSet>> {
        self.by_jobset.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told of all that goes on with a JobSet.
    pub(crate) fn news(&self, jobset: &JobSet, goes_on: Vec<Event>) -> Vec<Event> {
        let mut by_jobset = self.locked();
        // As it nearly always is.
        if goes_on.is_empty() && by_jobset.is_empty() {
            return Vec::new();
        }
        let key = ObjectRef::from_obj(jobset);
        let before = by_jobset.remove(&key);
        if goes_on.is_empty() {
            return Vec::new();
        }
        // Another one of the same name has been told nothing.
        let before = before.filter(|before| before.uid == jobset.uid_str());
        let told_at = |event: &Event| {
            let (_, at) = before.as_ref()?.events.iter().find(|(told, _)| told == event)?;
            (at.elapsed() < AGAIN).then_some(*at)
        };
        let mut news = Vec::new();
        let mut events = Vec::new();
        for event in goes_on {
            let at = told_at(&event).unwrap_or_else(|| {
                news.push(event.clone());
                Instant::now()
            });
            events.push((event, at));
        }
        let uid = jobset.uid_str().to_owned();
        by_jobset.insert(key, OfJobSet { uid, events });
        news
    }

    /// Nothing goes on with the JobSet any more.
    pub(crate) fn forget(&self, key: &ObjectRef<JobSet>) {
        self.locked().remove(key);
    }
}
