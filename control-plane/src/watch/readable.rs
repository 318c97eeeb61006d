//! The JobSets that can be read. Those that cannot are reported: in the log, and as an Event on the object.

use std::collections::HashSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::Recorder;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use lockstep_api::{GROUP, JobSet, KIND, VERSION};
use lockstep_core::plan::{self, Severity};

use super::follow::backoff;
use crate::apply::events;

#[cfg(test)]
mod tests;

/// Reason of the Event on a JobSet that cannot be read.
const UNREADABLE: &str = "UnreadableJobSet";

/// All JobSets. One that cannot be read is treated as absent: nothing is done about it or to it.
pub(super) fn jobsets(client: &Client) -> impl Stream<Item = watcher::Result<Event<JobSet>>> + Send + use<> {
    let api = Api::<DeserializeGuard<JobSet>>::all(client.clone());
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
            let is_news = |object: &InvalidObject| {
                reported.insert((object.metadata.uid.clone(), object.metadata.generation))
            };
            let news = unreadable.filter(is_news);
            let recorder = recorder.clone();
            async move {
                if let Some(object) = news {
                    report(&recorder, &object).await;
                }
                event
            }
        })
}

/// Tells readable from unreadable objects.
fn split(event: Event<DeserializeGuard<JobSet>>) -> (Option<Event<JobSet>>, Option<InvalidObject>) {
    let absent = |object: &InvalidObject| {
        Event::Delete(JobSet {
            metadata: object.metadata.clone(),
            ..JobSet::default()
        })
    };
    match event {
        Event::Init => (Some(Event::Init), None),
        Event::InitDone => (Some(Event::InitDone), None),
        Event::InitApply(DeserializeGuard(Ok(jobset))) => (Some(Event::InitApply(jobset)), None),
        Event::InitApply(DeserializeGuard(Err(object))) => (None, Some(object)),
        Event::Apply(DeserializeGuard(Ok(jobset))) => (Some(Event::Apply(jobset)), None),
        Event::Apply(DeserializeGuard(Err(object))) => (Some(absent(&object)), Some(object)),
        Event::Delete(DeserializeGuard(Ok(jobset))) => (Some(Event::Delete(jobset)), None),
        Event::Delete(DeserializeGuard(Err(object))) => (Some(absent(&object)), None),
    }
}

async fn report(recorder: &Recorder, object: &InvalidObject) {
    let metadata = &object.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    tracing::error!(
        namespace = metadata.namespace,
        jobset = name,
        error = object.error,
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
        message: format!("this JobSet cannot be read and is left alone: {}", object.error),
    };
    events::publish(recorder, &regarding, &event).await;
}
