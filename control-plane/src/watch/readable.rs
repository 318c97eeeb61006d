//! The JobSets that can be read. Those that cannot are reported: in the log, and as an Event on the object.

use std::collections::HashSet;

use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::events::Recorder;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use lockstep_core::plan::{self, Severity};

use super::follow::backoff;
use super::packed::{PackedJobSet, Unreadable};
use crate::apply::events;

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
    let mut reported = HashSet::new();
    watcher(api, watcher::Config::default())
        .backoff(backoff())
        .filter_map(move |event| {
            let (event, unreadable) = match event {
                Ok(event) => {
                    let (event, unreadable) = split(event);
                    (event.map(Ok), unreadable)
                }
                Err(error) => (Some(Err(error)), None),
            };
            // A new list brings the same objects again.
            let is_news = |(object, _): &(PackedJobSet, Unreadable)| {
                reported.insert((object.meta().uid.clone(), object.meta().generation))
            };
            let news = unreadable.filter(is_news);
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
    let regarding = object.object_ref(&());
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
    events::publish(recorder, &regarding, &event).await;
}
