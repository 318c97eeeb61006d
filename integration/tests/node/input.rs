//! JobSets that cannot be: whoever wrote them is told what is wrong, and nothing is started.

use anyhow::{Result, ensure};
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(unknown_field),
        case!(other_backoff_limit),
        case!(bad_timeout),
    ]
}

async fn unknown_field(scene: Scene) -> Result<()> {
    let mut manifest = Manifest::new(2, IDLE);
    manifest.0["spec"]["failurePolicy"]["maxRestart"] = json!(3);
    let Err(error) = scene.apply(&manifest).await else {
        anyhow::bail!("kubectl takes it")
    };
    ensure!(
        format!("{error:#}").contains("spec.failurePolicy.maxRestart"),
        "{error:#}"
    );
    Ok(())
}

async fn other_backoff_limit(scene: Scene) -> Result<()> {
    is_refused(
        &scene,
        &Manifest::new(2, IDLE).job(json!({"backoffLimit": 6})),
        "template.spec.backoffLimit",
    )
    .await
}

async fn bad_timeout(scene: Scene) -> Result<()> {
    let timeout = "alpha.jobset.sigs.k8s.io/inplace-timeout";
    is_refused(
        &scene,
        &Manifest::new(2, IDLE).annotated(timeout, "soon"),
        timeout,
    )
    .await
}

/// The JobSet fails with a message and an event that name `field`, and no Job is made.
async fn is_refused(scene: &Scene, manifest: &Manifest, field: &str) -> Result<()> {
    let group = scene.apply(manifest).await?;
    let (reason, message) = group.condition("Failed", START).await?;
    ensure!(reason == "InvalidJobSet", "{reason}: {message}");
    ensure!(
        message.contains(field),
        "the message does not name {field}: {message}"
    );
    let event = group.event("InvalidJobSet").await?;
    let note = event.message.unwrap_or_default();
    ensure!(note.contains(field), "the event does not name {field}: {note}");
    ensure!(group.jobs().await?.is_empty(), "Jobs were made all the same");
    Ok(())
}
