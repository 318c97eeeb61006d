//! What a reconciler keeps about Ray's objects: how often they have failed, when they are due, and
//! which events were published.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use lockstep_core::jobset::plan;
use tokio::time::Instant;

use super::apply::RayError;
use super::turns::NEXT_TURN;
use crate::k8s::apply::EventDedup;
use crate::k8s::apply::events::{self, Queue, short};
use crate::k8s::retry::{Failures, delay};

#[cfg(test)]
mod tests;

/// When to check an object of another controller again, which may go away.
const RECHECK: Duration = Duration::from_secs(60);

/// The retry state of all objects of a kind. Objects that are gone are forgotten.
pub(super) struct RetryState<K: Resource<DynamicType = ()>> {
    queue: Queue,
    failures: Failures<ObjectRef<K>>,
    /// Deadlines, which hold even if the last decision cannot be carried out.
    due: Mutex<HashMap<ObjectRef<K>, Instant>>,
    /// Events that say why nothing is done.
    notices: EventDedup<K>,
    /// Events about what the API server refused to create, until it succeeds.
    refusals: EventDedup<K>,
}

fn key<K: Resource<DynamicType = ()>>(object: &impl Resource<DynamicType = ()>) -> ObjectRef<K> {
    let name = object.meta().name.as_deref().unwrap_or_default();
    ObjectRef::new(name).within(object.meta().namespace.as_deref().unwrap_or_default())
}

impl<K: Resource<DynamicType = ()>> RetryState<K> {
    /// Events go to `queue`.
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            failures: Failures::default(),
            due: Mutex::default(),
            notices: EventDedup::once(),
            refusals: EventDedup::default(),
        }
    }

    /// Publishes an event.
    pub(super) fn publish(&self, object: &K, mut event: plan::Event) {
        event.message = short(event.message);
        let regarding = events::regarding(object);
        tracing::info!(
            kind = regarding.kind,
            namespace = regarding.namespace,
            name = regarding.name,
            reason = event.reason,
            note = event.message,
            "changed"
        );
        self.queue.add(regarding, event);
    }

    /// Publishes an event unless the last notice was the same.
    pub(super) fn publish_once(&self, object: &K, notice: plan::Event) {
        for notice in self.notices.to_send(object, vec![notice]) {
            self.publish(object, notice);
        }
    }

    /// Publishes an event about a refused creation. It is repeated only if the last one may be
    /// gone, or after a success.
    pub(super) fn publish_refusal(&self, object: &K, refusal: plan::Event) {
        for refusal in self.refusals.to_send(object, vec![refusal]) {
            self.publish(object, refusal);
        }
    }

    /// How long an object rests after failures, regardless of changes, but never beyond its
    /// deadline.
    pub(super) fn rests(&self, object: &impl Resource<DynamicType = ()>) -> Option<Duration> {
        let key = key(object);
        let rests = self.failures.rests(&key)?.min(self.until_due(&key));
        Some(rests).filter(|rests| !rests.is_zero())
    }

    /// The time until an object's deadline.
    fn until_due(&self, key: &ObjectRef<K>) -> Duration {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let at = due.get(key);
        at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Records that an object is being reconciled, which meets a deadline that has passed.
    pub(super) fn begins(&self, object: &impl Resource<DynamicType = ()>) {
        let key = key(object);
        if self.until_due(&key).is_zero() {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            due.remove(&key);
        }
    }

    /// No turn is free for the object's decision. Returns to try again soon, even after failures.
    pub(super) fn postponed(&self, object: &impl Resource<DynamicType = ()>) -> Action {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.insert(key(object), Instant::now());
        Action::requeue(NEXT_TURN)
    }

    /// Sets the next deadline. The object is reconciled then, even if the decision cannot be
    /// carried out.
    pub(super) fn decided(&self, object: &K, deadline: Option<SignedDuration>) {
        let after = deadline.and_then(|after| Duration::try_from(after).ok());
        let at = after.and_then(|after| Instant::now().checked_add(after));
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => due.insert(ObjectRef::from_obj(object), at),
            None => due.remove(&ObjectRef::from_obj(object)),
        };
    }

    /// Records a success. Returns when to reconcile again.
    pub(super) fn worked(&self, object: &K, after: Option<SignedDuration>, has_notice: bool) -> Action {
        let key = ObjectRef::from_obj(object);
        self.failures.forget(&key);
        self.refusals.forget(&key);
        let after = after.and_then(|after| Duration::try_from(after).ok());
        let recheck = has_notice.then_some(RECHECK);
        let next = after.into_iter().chain(recheck).min();
        next.map_or_else(Action::await_change, Action::requeue)
    }

    /// Records a failure. Returns when to try again.
    pub(super) fn failed(&self, object: &K, error: &RayError) -> Action {
        let key = ObjectRef::from_obj(object);
        if let Some(event) = error.event() {
            self.publish_refusal(object, event);
        }
        let delay = delay(self.failures.add(key.clone())).min(self.until_due(&key));
        let (kind, namespace, name) = (K::kind(&()), key.namespace, key.name);
        if matches!(error, RayError::Conflict(_)) {
            tracing::debug!(%kind, namespace, name, %error, ?delay, "will decide again");
        } else {
            tracing::warn!(%kind, namespace, name, %error, ?delay, "reconcile failed, will retry");
        }
        Action::requeue(delay)
    }

    /// Forgets an object that is gone.
    pub(super) fn gone(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.failures.forget(&key);
        self.notices.forget(&key);
        self.refusals.forget(&key);
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.remove(&key);
    }
}
