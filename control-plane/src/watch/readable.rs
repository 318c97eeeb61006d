//! The JobSets that can be read. Those that cannot are reported: in the log, and as an Event on the object.

use std::collections::HashSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::Recorder;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use lockstep_api::{GROUP, KIND, VERSION};
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
                    report(&recorder, object.meta(), &error).await;
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

async fn report(recorder: &Recorder, metadata: &ObjectMeta, error: &Unreadable) {
    let name = metadata.name.clone().unwrap_or_default();
    tracing::error!(
        namespace = metadata.namespace,
        jobset = name,
        %error,
        "JobSet cannot be read and is left alone"
    );
    let regarding = ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(KIND.to_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    };
    let event = plan::Event {
        severity: Severity::Warning,
        reason: UNREADABLE.to_owned(),
        message: format!("this JobSet cannot be read and is left alone: {error}"),
    };
    events::publish(recorder, &regarding, &event).await;
}
