//! JobSets of which something is left out of the cache because there is no room for it. What is decided about one of which not all is seen would be wrong.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use lockstep_api::JobSet;

#[cfg(test)]
mod tests;

/// Those of one watch.
#[derive(Default)]
pub(super) struct LeftOut(Mutex<Known>);

#[derive(Default)]
struct Known {
    now: HashSet<ObjectRef<JobSet>>,
    /// Those that a list has brought so far, while one is under way.
    listed: Option<HashSet<ObjectRef<JobSet>>>,
}

impl LeftOut {
    fn locked(&self) -> MutexGuard<'_, Known> {
        // Nothing under this lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of this JobSet was left out.
    pub(super) fn add(&self, jobset: Option<ObjectRef<JobSet>>) {
        let mut known = self.locked();
        if let (Some(listed), Some(jobset)) = (&mut known.listed, &jobset) {
            listed.insert(jobset.clone());
        }
        known.now.extend(jobset);
    }

    /// Takes an event of the watch into account, before anybody is told of it: a complete list knows of all that is left out.
    pub(super) fn follow<K>(&self, event: &watcher::Result<Event<K>>) {
        match event {
            Ok(Event::Init) => self.locked().listed = Some(HashSet::new()),
            Ok(Event::InitDone) => {
                let mut known = self.locked();
                if let Some(listed) = known.listed.take() {
                    known.now = listed;
                }
            }
            _ => {}
        }
    }

    /// Whether something of this JobSet is left out.
    pub(super) fn has(&self, jobset: &ObjectRef<JobSet>) -> bool {
        let known = self.locked();
        // As it nearly always is.
        !known.now.is_empty() && known.now.contains(jobset)
    }
}
