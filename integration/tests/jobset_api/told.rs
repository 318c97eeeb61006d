//! Events about what goes wrong: there is one, and no more of it than happened.

use anyhow::{Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(
        a_job_that_can_never_be_made_is_told_of_once_and_tried_ever_more_slowly
    )]
}

/// The events with this reason about the JobSet.
async fn events(scene: &Scene, reason: &str) -> Result<Vec<Event>> {
    let mut events = scene.api::<Event>().list(&ListParams::default()).await?.items;
    events.retain(|event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some(reason)
            && regarding.is_some_and(|object| object.kind.as_deref() == Some("JobSet"))
    });
    Ok(events)
}

async fn a_job_that_can_never_be_made_is_told_of_once_and_tried_ever_more_slowly(scene: Scene) -> Result<()> {
    // Such names of Jobs can be, such labels cannot.
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("-a", 1)]})))
        .await?;
    let note = scene.until_event("JobCreationFailed").await?;
    for expected in [
        "job \"js--a-0\" creation failed",
        "metadata.labels: Invalid value: \"-a\"",
    ] {
        ensure!(note.contains(expected), "{note}");
    }
    let failures = |number: u32| {
        let namespace = &scene.namespace.name;
        let log = scene.control_plane();
        log.logged_with(&[
            "reconcile failed, will retry",
            namespace,
            &format!("failures={number} "),
        ])
    };
    eventually("it is tried again and again", PATIENCE, async || {
        ensure!(failures(5) > 0);
        Ok(())
    })
    .await?;
    // Not earlier than 100, 200, 400 and 800 ms after one another.
    ensure!(failures(12) == 0, "it is tried too often");
    let told = events(&scene, "JobCreationFailed").await?;
    ensure!(
        told.len() == 1 && told[0].series.is_none() && told[0].type_.as_deref() == Some("Warning"),
        "{told:?}"
    );
    Ok(())
}
