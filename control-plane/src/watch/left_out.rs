//! JobSets of which something is left out of the cache because there is no room for it. What is decided about one of which not all is seen would be wrong.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use lockstep_api::JobSet;

#[cfg(test)]
mod tests;

/// Names of what is left out, by JobSet.
type Names = HashMap<ObjectRef<JobSet>, HashSet<String>>;

/// Those of one watch.
#[derive(Default)]
pub(super) struct LeftOut(Mutex<Known>);

#[derive(Default)]
struct Known {
    now: Names,
    /// Those that a list has brought so far, while one is under way.
    listed: Option<Names>,
}

impl LeftOut {
    fn locked(&self) -> MutexGuard<'_, Known> {
        // Nothing under this lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of this JobSet is left out, or is so no more.
    pub(super) fn tell(&self, jobset: ObjectRef<JobSet>, name: &str, is_left_out: bool) {
        let mut known = self.locked();
        let Known { now, listed } = &mut *known;
        if is_left_out {
            if let Some(listed) = listed {
                listed.entry(jobset.clone()).or_default().insert(name.to_owned());
            }
            now.entry(jobset).or_default().insert(name.to_owned());
            return;
        }
        for names in [Some(now), listed.as_mut()].into_iter().flatten() {
            // As it nearly always is.
            if names.is_empty() {
                continue;
            }
            if let Some(of_jobset) = names.get_mut(&jobset) {
                of_jobset.remove(name);
                if of_jobset.is_empty() {
                    names.remove(&jobset);
                }
            }
        }
    }

    /// Takes an event of the watch into account, before anybody is told of it: a complete list knows of all that is left out.
    pub(super) fn follow<K>(&self, event: &watcher::Result<Event<K>>) {
        match event {
            Ok(Event::Init) => self.locked().listed = Some(Names::new()),
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
        !known.now.is_empty() && known.now.contains_key(jobset)
    }
}
