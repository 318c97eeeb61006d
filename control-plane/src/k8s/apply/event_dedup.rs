//! Deduplicates events: an ongoing condition is not reported again at each reconcile.
//!
//! Promises: a condition that is new, or went away and came back, is reported at once. One that
//! persists is reported again only when its event may have expired.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_core::jobset::plan::Event;
use tokio::time::Instant;

use super::events::short;

/// How long after its event a persistent condition is reported again. The API server keeps events
/// for an hour by default.
pub(crate) const AGAIN: Duration = Duration::from_secs(30 * 60);

/// Which events are on record for objects of one kind, and when each was sent.
pub(crate) struct EventDedup<K: Resource<DynamicType = ()>> {
    by_object: Mutex<HashMap<ObjectRef<K>, SentEvents>>,
    /// After this time the event about a persistent condition may have expired.
    again: Duration,
}

/// The ongoing conditions of one object.
struct SentEvents {
    uid: Option<String>,
    events: Vec<(Event, Instant)>,
}

impl<K: Resource<DynamicType = ()>> Default for EventDedup<K> {
    fn default() -> Self {
        Self {
            by_object: Mutex::default(),
            again: AGAIN,
        }
    }
}

impl<K: Resource<DynamicType = ()>> EventDedup<K> {
    /// Reports each condition once, however long it persists.
    pub(crate) fn once() -> Self {
        Self {
            again: Duration::MAX,
            ..Self::default()
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<K>, SentEvents>> {
        self.by_object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events to send, of all ongoing conditions of an object.
    pub(crate) fn to_send(&self, object: &K, ongoing: Vec<Event>) -> Vec<Event> {
        let mut by_object = self.locked();
        // The usual case.
        if ongoing.is_empty() && by_object.is_empty() {
            return Vec::new();
        }
        let key = ObjectRef::from_obj(object);
        let before = by_object.remove(&key);
        if ongoing.is_empty() {
            return Vec::new();
        }
        // Nothing was reported about another object of the same name.
        let uid = object.meta().uid.clone();
        let before = before.filter(|before| before.uid == uid);
        let sent_at = |event: &Event| {
            let (_, at) = before.as_ref()?.events.iter().find(|(sent, _)| sent == event)?;
            (at.elapsed() < self.again).then_some(*at)
        };
        let mut unsent = Vec::new();
        let mut events = Vec::new();
        for mut event in ongoing {
            event.message = short(event.message);
            let at = sent_at(&event).unwrap_or_else(|| {
                unsent.push(event.clone());
                Instant::now()
            });
            events.push((event, at));
        }
        by_object.insert(key, SentEvents { uid, events });
        unsent
    }

    /// True if an object has an ongoing condition.
    pub(crate) fn is_ongoing(&self, key: &ObjectRef<K>) -> bool {
        self.locked().contains_key(key)
    }

    /// Forgets an object that no longer has any condition.
    pub(crate) fn forget(&self, key: &ObjectRef<K>) {
        self.locked().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::JobSet;
    use lockstep_core::jobset::plan::Severity;

    use super::*;

    fn jobset(uid: &str) -> JobSet {
        let mut jobset = JobSet::default();
        jobset.metadata.name = Some("js".to_owned());
        jobset.metadata.uid = Some(uid.to_owned());
        jobset
    }

    fn event(message: &str) -> Event {
        Event {
            severity: Severity::Warning,
            reason: "JobCreationFailed".to_owned(),
            message: message.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_ongoing_condition_is_reported_again_only_when_its_event_may_have_expired() {
        let (dedup, js) = (EventDedup::default(), jobset("u"));
        let (a, b) = (event("a"), event("b"));
        assert!(!dedup.is_ongoing(&ObjectRef::from_obj(&js)));
        assert_eq!(dedup.to_send(&js, vec![a.clone()]), vec![a.clone()]);
        assert!(dedup.is_ongoing(&ObjectRef::from_obj(&js)));
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(300)).await;
            assert_eq!(dedup.to_send(&js, vec![a.clone()]), []);
        }
        // Only what is new.
        assert_eq!(dedup.to_send(&js, vec![a.clone(), b.clone()]), vec![b.clone()]);
        tokio::time::advance(Duration::from_secs(1000)).await;
        assert_eq!(dedup.to_send(&js, vec![a.clone(), b]), vec![a]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_is_reported_once_per_occurrence_and_object() {
        let (dedup, js, a) = (EventDedup::once(), jobset("u"), event("a"));
        assert_eq!(dedup.to_send(&js, vec![a.clone()]).len(), 1);
        tokio::time::advance(Duration::from_secs(1_000_000)).await;
        assert_eq!(dedup.to_send(&js, vec![a.clone()]), []);
        assert_eq!(dedup.to_send(&jobset("v"), vec![a.clone()]).len(), 1);
        dedup.forget(&ObjectRef::from_obj(&js));
        assert_eq!(dedup.to_send(&js, vec![a]).len(), 1);
    }

    #[tokio::test]
    async fn a_condition_that_returns_or_is_of_another_jobset_is_reported() {
        let (dedup, js) = (EventDedup::default(), jobset("u"));
        let a = event("a");
        assert_eq!(dedup.to_send(&js, vec![a.clone()]).len(), 1);
        assert_eq!(dedup.to_send(&js, Vec::new()), []);
        assert_eq!(dedup.to_send(&js, vec![a.clone()]).len(), 1);
        assert_eq!(dedup.to_send(&jobset("v"), vec![a.clone()]).len(), 1);
        dedup.forget(&ObjectRef::from_obj(&js));
        assert!(dedup.locked().is_empty());
    }
}
