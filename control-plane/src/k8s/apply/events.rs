//! Publishes events about JobSets (events.k8s.io/v1) in the background.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use lockstep_api::conditions::events::JOBSET_CONTROLLER;
use lockstep_core::jobset::plan;

pub(crate) use super::recorder::{Recorder, short};
use crate::k8s::event_queue;
use crate::telemetry::log_limit::LineLimit;

/// How many events are written concurrently.
const PARALLELISM: usize = 8;

type PendingEvent = (ObjectReference, plan::Event);
/// Kind, namespace and name. Events about one object are written in order, since the second event
/// of a kind increments the count of the first.
type About = (Option<String>, Option<String>, Option<String>);

/// The sending end of the event queue.
#[derive(Clone)]
pub(crate) struct Queue {
    events: event_queue::Sender<About, PendingEvent>,
    dropped: Arc<LineLimit>,
}

/// Writes the events of a [`Queue`].
pub struct Publisher {
    recorder: Recorder,
    events: event_queue::Receiver<About, PendingEvent>,
}

/// Makes a connected pair.
pub(crate) fn queue(client: Client) -> (Queue, Publisher) {
    queue_as(client, JOBSET_CONTROLLER)
}

/// Makes a connected pair for events of this controller.
pub(crate) fn queue_as(client: Client, controller: &str) -> (Queue, Publisher) {
    let (sender, receiver) = event_queue::queue();
    (
        Queue {
            events: sender,
            dropped: Arc::default(),
        },
        Publisher {
            recorder: recorder_as(client, controller),
            events: receiver,
        },
    )
}

impl Queue {
    pub(crate) fn add(&self, regarding: ObjectReference, mut event: plan::Event) {
        event.message = short(event.message);
        let namespace = regarding.namespace.clone().unwrap_or_default();
        let about = (
            regarding.kind.clone(),
            regarding.namespace.clone(),
            regarding.name.clone(),
        );
        if self.events.add(&namespace, about, (regarding, event)).is_err()
            && let Some(unsaid) = self.dropped.next()
        {
            tracing::warn!(
                namespace,
                suppressed = unsaid,
                "too many events are waiting, event dropped"
            );
        }
    }
}

impl Publisher {
    /// Writes events until the queue is gone and empty.
    pub async fn run(self) {
        let recorder = &self.recorder;
        let events = stream::unfold(self.events, |mut events| async {
            let turn = events.next().await?;
            Some((turn, events))
        });
        events
            .for_each_concurrent(PARALLELISM, |turn| async move {
                let (regarding, event) = &turn.event;
                publish(recorder, regarding, event).await;
            })
            .await;
    }
}

/// A recorder for the JobSet controller's events.
pub fn recorder(client: Client) -> Recorder {
    recorder_as(client, JOBSET_CONTROLLER)
}

/// A recorder for the events of this controller.
pub(crate) fn recorder_as(client: Client, controller: &str) -> Recorder {
    // The same instance as client-go's recorder uses. In a cluster the host name is the pod's name.
    let instance = nix::unistd::gethostname().map_or_else(
        |_| controller.to_owned(),
        |host| format!("{controller}-{}", host.display()),
    );
    Recorder::new(client, controller, instance)
}

/// The object that an event is about. As in client-go's recorder, an event about one version of an
/// object does not repeat an event about another.
pub(crate) fn regarding<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference {
        resource_version: object.meta().resource_version.clone(),
        ..object.object_ref(&())
    }
}

/// Publishes an event. No state depends on events: a failure is logged, and the event is dropped.
pub async fn publish(recorder: &Recorder, regarding: &ObjectReference, event: &plan::Event) {
    if let Err(error) = recorder.publish(regarding, event).await {
        tracing::warn!(
            namespace = regarding.namespace,
            name = regarding.name,
            %error,
            reason = event.reason,
            "event not published"
        );
    }
}
