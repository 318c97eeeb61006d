//! The JobSets that can be read. Those that cannot are reported: in the log, and as an Event on the object.

use std::collections::{HashMap, HashSet};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use lockstep_core::plan::{self, Severity};

use super::follow::patient;
use super::packed::{PackedJobSet, Unreadable};
use crate::apply::events::{self, Recorder};

#[cfg(test)]
mod tests;

/// Reason of the Event on a JobSet that cannot be read.
const UNREADABLE: &str = "UnreadableJobSet";

/// All JobSets. One that cannot be read is treated as absent: nothing is done about it or to it.
pub(super) fn jobsets(
    client: &Client,
) -> impl Stream<Item = watcher::Result<Event<PackedJobSet>>> + Send + use<> {
    let api = Api::<PackedJobSet>::all(client.clone());
    let recorder = events::recorder(client.clone());
    let mut reported = Reported::default();
    patient(watcher(api, watcher::Config::default())).filter_map(move |event| {
        let (event, unreadable) = match event {
            Ok(event) => {
                reported.follow(&event);
                let (event, unreadable) = split(event);
                (event.map(Ok), unreadable)
            }
            Err(error) => (Some(Err(error)), None),
        };
        // A new list brings the same objects again.
        let news = unreadable.filter(|(object, _)| reported.is_news(object));
        let recorder = recorder.clone();
        async move {
            if let Some((object, error)) = news {
                let why = format!("this JobSet cannot be read and is left alone: {error}");
                report(&recorder, &object, UNREADABLE, why).await;
            }
            event
        }
    })
}

/// The unreadable objects that were reported, and at which generation. What is gone is forgotten.
#[derive(Default)]
pub(crate) struct Reported {
    by_uid: HashMap<String, Option<i64>>,
    /// What a list that is under way has brought of them.
    listed: HashSet<String>,
}

impl Reported {
    /// Takes an event into account.
    pub(crate) fn follow<K: Resource>(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => self.listed.extend(object.meta().uid.clone()),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.by_uid.retain(|uid, _| listed.contains(uid));
            }
            Event::Apply(_) => {}
            Event::Delete(object) => {
                let uid = object.meta().uid.as_ref();
                uid.and_then(|uid| self.by_uid.remove(uid));
            }
        }
    }

    /// Whether nothing was said of this version of it yet.
    pub(crate) fn is_news<K: Resource>(&mut self, object: &K) -> bool {
        let meta = object.meta();
        let uid = meta.uid.clone().unwrap_or_default();
        self.by_uid.insert(uid, meta.generation) != Some(meta.generation)
    }
}

/// Tells readable from unreadable objects.
fn split(event: Event<PackedJobSet>) -> (Option<Event<PackedJobSet>>, Option<(PackedJobSet, Unreadable)>) {
    let (Event::InitApply(object) | Event::Apply(object)) = &event else {
        return (Some(event), None);
    };
    let Err(error) = object.unpack() else {
        return (Some(event), None);
    };
    match event {
        Event::InitApply(object) => (None, Some((object, error))),
        Event::Apply(object) => (Some(Event::Delete(object.clone())), Some((object, error))),
        event => (Some(event), None),
    }
}

/// Tells that an object is left alone: in the log, and as an Event.
pub(crate) async fn report<K>(recorder: &Recorder, object: &K, reason: &str, why: String)
where
    K: Resource<DynamicType = ()>,
{
    let (regarding, event) = fault(object, reason, why);
    events::publish(recorder, &regarding, &event).await;
}

/// Logs what is wrong with an object, and makes the Event of it.
pub(crate) fn fault<K>(object: &K, reason: &str, why: String) -> (ObjectReference, plan::Event)
where
    K: Resource<DynamicType = ()>,
{
    let regarding = events::regarding(object);
    tracing::error!(
        kind = regarding.kind,
        namespace = regarding.namespace,
        name = regarding.name,
        "{why}"
    );
    let event = plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message: why,
    };
    (regarding, event)
}
