//! JobSets that have objects left out of the cache for lack of memory. Decisions about such a
//! JobSet would be wrong.
//!
//! Promises: a JobSet is marked as incomplete before the cache lacks one of its objects, and until
//! the cache has all of them again. Readers of the cache ask before and after: what they read is
//! complete if both answers are no.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;

#[cfg(test)]
mod tests;

/// The most names that are kept of one namespace. Beyond it no JobSet of the namespace counts as
/// complete until the next list.
pub(super) const MOST: usize = 10_000;

/// The objects that are left out, by namespace.
#[derive(Default)]
struct Names(HashMap<String, NamespaceNames>);

#[derive(Default)]
struct NamespaceNames {
    /// The JobSet of each object.
    of: HashMap<String, String>,
    /// The number of objects left out of each JobSet.
    counts: HashMap<String, usize>,
    /// True if more objects are left out than there are names here.
    is_full: bool,
}

impl Names {
    fn insert(&mut self, jobset: &ObjectRef<JobSet>, name: &str) {
        let namespace = jobset.namespace.as_deref().unwrap_or_default();
        // Another client may have changed its label.
        self.remove(namespace, name);
        let names = self.0.entry(namespace.to_owned()).or_default();
        if names.of.len() >= MOST {
            names.is_full = true;
            return;
        }
        names.of.insert(name.to_owned(), jobset.name.clone());
        *names.counts.entry(jobset.name.clone()).or_default() += 1;
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(names) = self.0.get_mut(namespace) else {
            return;
        };
        if let Some(jobset) = names.of.remove(name)
            && let Some(count) = names.counts.get_mut(&jobset)
        {
            *count -= 1;
            if *count == 0 {
                names.counts.remove(&jobset);
            }
        }
        if names.of.is_empty() && !names.is_full {
            self.0.remove(namespace);
        }
    }

    fn has(&self, jobset: &ObjectRef<JobSet>) -> bool {
        let names = self.0.get(jobset.namespace.as_deref().unwrap_or_default());
        names.is_some_and(|names| names.is_full || names.counts.contains_key(&jobset.name))
    }
}

/// The objects that one watch leaves out.
#[derive(Default)]
pub(super) struct LeftOut(Mutex<State>);

#[derive(Default)]
struct State {
    now: Names,
    /// The objects left out of the current list so far. The cache shows nothing of a list before it
    /// is complete.
    listed: Option<Names>,
    /// Namespaces and names of objects that are no longer left out once the cache shows them.
    ended: HashSet<(String, String)>,
}

impl LeftOut {
    fn locked(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an object of this JobSet is left out, or no longer will be once the cache has
    /// followed. Call this before the cache follows.
    pub(super) fn tell(&self, jobset: &ObjectRef<JobSet>, name: &str, is_left_out: bool) {
        let mut state = self.locked();
        let State { now, listed, ended } = &mut *state;
        if is_left_out {
            if let Some(listed) = listed {
                listed.insert(jobset, name);
            }
            now.insert(jobset, name);
            return;
        }
        let namespace = jobset.namespace.as_deref().unwrap_or_default();
        match listed {
            Some(listed) => listed.remove(namespace, name),
            // The usual case.
            None if now.0.is_empty() => {}
            None => {
                ended.insert((namespace.to_owned(), name.to_owned()));
            }
        }
    }

    /// The cache has followed this event of the watch. A complete list knows of all that is left
    /// out.
    pub(super) fn followed<K>(&self, event: &Event<K>) {
        let mut state = self.locked();
        let State { now, listed, ended } = &mut *state;
        match event {
            Event::Init => *listed = Some(Names::default()),
            Event::InitApply(_) => {}
            Event::InitDone => {
                if let Some(listed) = listed.take() {
                    *now = listed;
                }
            }
            Event::Apply(_) | Event::Delete(_) => {
                for (namespace, name) in ended.drain() {
                    now.remove(&namespace, &name);
                }
            }
        }
    }

    /// True if any object of this JobSet is left out.
    pub(super) fn has(&self, jobset: &ObjectRef<JobSet>) -> bool {
        let state = self.locked();
        // The usual case.
        !state.now.0.is_empty() && state.now.has(jobset)
    }
}
