//! Writes events (events.k8s.io/v1), and counts those that are told again instead of writing them
//! anew.
//!
//! Promises: two events are one, with a `series`, only if all that a reader sees of them is the
//! same, the note too; no more than [`REMEMBERED`] are remembered.

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

/// Events that may be told again and are counted then.
const REMEMBERED: u64 = 4096;
/// How long after it was last told an event that is told again is another one, as with client-go's
/// recorder.
const FORGOTTEN: Duration = Duration::from_secs(6 * 60);
/// Events take 1 KiB of note.
const LONGEST_NOTE: usize = 1024;

/// Writes the events of one controller. Cheap to clone. What is told of one object is to be told
/// one after the other, else it is not counted.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: String,
    instance: String,
    told: Cache<Key, Arc<Event>>,
}

/// All that a reader sees of an event but when it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Kind, namespace, name, UID and resourceVersion: what is told of one version of an object is
    /// no repetition of what was told of another.
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
    /// What the API server says.
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
                // It has expired, or somebody has deleted it.
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

/// As much of a note as an event takes.
pub(crate) fn short(mut note: String) -> String {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    note
}
