//! Publishes events about JobSets (events.k8s.io/v1).

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use lockstep_api::events::ACTION;
use lockstep_core::plan::{self, Severity};

/// `reportingController` of the events, as upstream has it.
const CONTROLLER: &str = "jobset";
/// Events take 1 KiB of note.
const LONGEST_NOTE: usize = 1024;

/// A recorder for the events of this process.
pub fn recorder(client: Client) -> Recorder {
    Recorder::new(client, Reporter::from(CONTROLLER))
}

/// Publishes an event. Events are news, not state: one that cannot be published is logged, and forgotten.
pub async fn publish(recorder: &Recorder, regarding: &ObjectReference, event: &plan::Event) {
    let mut note = event.message.clone();
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    let published = Event {
        type_: match event.severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        },
        reason: event.reason.clone(),
        note: Some(note),
        action: ACTION.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&published, regarding).await {
        tracing::warn!(%error, reason = event.reason, "event not published");
    }
}
