//! JobSets of which something is left out of the cache because there is no room for it. What is
//! decided about one of which not all is seen would be wrong.
//!
//! Promises: a JobSet is known to be seen in part before the cache lacks something of it, and until
//! the cache has all of it again. Who reads the cache asks before and after: what it reads is whole
//! if neither answer was that something is left out.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;

#[cfg(test)]
mod tests;

/// Names of one namespace that are kept. Where more is left out nothing in that namespace is known
/// to be whole until the next list.
pub(super) const MOST: usize = 10_000;

/// What is left out, by namespace.
#[derive(Default)]
struct Names(HashMap<String, NamespaceNames>);

#[derive(Default)]
struct NamespaceNames {
    /// The JobSet of each object.
    of: HashMap<String, String>,
    /// Objects of each JobSet.
    counts: HashMap<String, usize>,
    /// True if more is left out than is kept here.
    is_full: bool,
}

impl Names {
    fn insert(&mut self, jobset: &ObjectRef<JobSet>, name: &str) {
        let namespace = jobset.namespace.as_deref().unwrap_or_default();
        // Somebody may have changed its label.
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

/// Those of one watch.
#[derive(Default)]
pub(super) struct LeftOut(Mutex<State>);

#[derive(Default)]
struct State {
    now: Names,
    /// Those that a list has brought so far, while one is under way. The cache shows nothing of the
    /// list before it is complete.
    listed: Option<Names>,
    /// Namespaces and names of what is no longer left out, once the cache shows that.
    ended: HashSet<(String, String)>,
}

impl LeftOut {
    fn locked(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of this JobSet is left out, or no longer will be once the cache has followed. To
    /// be called before that.
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
            // As it nearly always is.
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

    /// True if something of this JobSet is left out.
    pub(super) fn has(&self, jobset: &ObjectRef<JobSet>) -> bool {
        let state = self.locked();
        // As it nearly always is.
        !state.now.0.is_empty() && state.now.has(jobset)
    }
}
