//! Writes events (events.k8s.io/v1). A repeated event increments the count of the first instead of
//! being written again.
//!
//! Promises: two events become one, with a `series`, only if everything that a reader sees is
//! equal, including the note. At most [`REMEMBERED`] events are remembered.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use lockstep_api::events::ACTION;
use lockstep_core::jobset::plan::{self, Severity};
use moka::future::Cache;

/// How many events are remembered to count their repetitions.
const REMEMBERED: u64 = 4096;
/// How long after its last occurrence a repeated event counts as a new one, as in client-go's
/// recorder.
const FORGOTTEN: Duration = Duration::from_secs(6 * 60);
/// The longest note that an event may have.
const LONGEST_NOTE: usize = 1024;

/// Writes the events of one controller. Cheap to clone. Publish events about one object one after
/// the other, or repetitions are not counted.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: String,
    instance: String,
    told: Cache<Key, Arc<Event>>,
}

/// Everything that a reader sees of an event except its time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Kind, namespace, name, UID and resourceVersion: an event about one version of an object does
    /// not repeat an event about another.
    regarding: [Option<String>; 5],
    warning: bool,
    reason: String,
    note: String,
}

impl Recorder {
    /// Writes events as `controller`, from this `instance` of it.
    pub(crate) fn new(client: Client, controller: &str, instance: String) -> Self {
        Self {
            client,
            controller: controller.to_owned(),
            instance,
            told: Cache::builder()
                .max_capacity(REMEMBERED)
                .time_to_idle(FORGOTTEN)
                .build(),
        }
    }

    /// Writes an event.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub(crate) async fn publish(
        &self,
        regarding: &ObjectReference,
        event: &plan::Event,
    ) -> Result<(), kube::Error> {
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let key = Key {
            regarding: [
                regarding.kind.clone(),
                regarding.namespace.clone(),
                regarding.name.clone(),
                regarding.uid.clone(),
                regarding.resource_version.clone(),
            ],
            warning: event.severity == Severity::Warning,
            reason: event.reason.clone(),
            note: short(event.message.clone()),
        };
        let now = Timestamp::now();
        if let Some(told) = self.told.get(&key).await {
            let mut again = Event::clone(&told);
            let before = again.series.map_or(1, |series| series.count);
            again.series = Some(EventSeries {
                count: before.saturating_add(1),
                last_observed_time: MicroTime(now),
            });
            let patch = Patch::Merge(&again);
            match api
                .patch(&again.name_any(), &PatchParams::default(), &patch)
                .await
            {
                Ok(_) => {
                    self.told.insert(key, Arc::new(again)).await;
                    return Ok(());
                }
                // The event expired or was deleted.
                Err(error) if super::is_status(&error, 404) => {}
                Err(error) => return Err(error),
            }
        }
        let first = self.first(regarding, &key, now);
        api.create(&PostParams::default(), &first).await?;
        self.told.insert(key, Arc::new(first)).await;
        Ok(())
    }

    fn first(&self, regarding: &ObjectReference, key: &Key, now: Timestamp) -> Event {
        let name = regarding.name.as_ref().unwrap_or(&self.controller);
        Event {
            metadata: ObjectMeta {
                namespace: regarding.namespace.clone(),
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                ..ObjectMeta::default()
            },
            action: Some(ACTION.to_owned()),
            reason: Some(key.reason.clone()),
            note: Some(key.note.clone()),
            type_: Some(if key.warning { "Warning" } else { "Normal" }.to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

/// Cuts a note to the length that an event may have.
pub(crate) fn short(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    note
}
