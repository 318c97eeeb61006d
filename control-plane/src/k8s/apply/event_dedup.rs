//! What has been told of objects, so that what goes on is not told again at each look.
//!
//! Promises: what is new, or was away and is back, is told at once; what stays is told again only when the event about it may be gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_core::jobset::plan::Event;
use tokio::time::Instant;

use super::events::short;

#[cfg(test)]
mod tests;

/// How long after it was told something that stays is told again. The API server keeps events for an hour, unless it is told otherwise.
pub(crate) const AGAIN: Duration = Duration::from_secs(30 * 60);

/// What goes on with objects of one kind, and when it was told.
pub(crate) struct Told<K: Resource<DynamicType = ()>> {
    by_object: Mutex<HashMap<ObjectRef<K>, OfObject>>,
    /// When the event about what stays may be gone.
    again: Duration,
}

/// What goes on with one object.
struct OfObject {
    uid: Option<String>,
    events: Vec<(Event, Instant)>,
}

impl<K: Resource<DynamicType = ()>> Default for Told<K> {
    fn default() -> Self {
        Self {
            by_object: Mutex::default(),
            again: AGAIN,
        }
    }
}

impl<K: Resource<DynamicType = ()>> Told<K> {
    /// For what is told once for ever, however long it stays.
    pub(crate) fn once() -> Self {
        Self {
            again: Duration::MAX,
            ..Self::default()
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<K>, OfObject>> {
        self.by_object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told of all that goes on with an object.
    pub(crate) fn news(&self, object: &K, goes_on: Vec<Event>) -> Vec<Event> {
        let mut by_object = self.locked();
        // As it nearly always is.
        if goes_on.is_empty() && by_object.is_empty() {
            return Vec::new();
        }
        let key = ObjectRef::from_obj(object);
        let before = by_object.remove(&key);
        if goes_on.is_empty() {
            return Vec::new();
        }
        // Another one of the same name has been told nothing.
        let uid = object.meta().uid.clone();
        let before = before.filter(|before| before.uid == uid);
        let told_at = |event: &Event| {
            let (_, at) = before.as_ref()?.events.iter().find(|(told, _)| told == event)?;
            (at.elapsed() < self.again).then_some(*at)
        };
        let mut news = Vec::new();
        let mut events = Vec::new();
        for mut event in goes_on {
            event.message = short(event.message);
            let at = told_at(&event).unwrap_or_else(|| {
                news.push(event.clone());
                Instant::now()
            });
            events.push((event, at));
        }
        by_object.insert(key, OfObject { uid, events });
        news
    }

    /// Whether anything goes on with an object.
    pub(crate) fn goes_on(&self, key: &ObjectRef<K>) -> bool {
        self.locked().contains_key(key)
    }

    /// Nothing goes on with the object any more.
    pub(crate) fn forget(&self, key: &ObjectRef<K>) {
        self.locked().remove(key);
    }
}
