//! Invalid JobSets: their author learns what is wrong, and nothing starts.

use anyhow::{Result, ensure};
use lockstep_integration::harness::Manifest;
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

/// Checks that the webhook refuses the JobSet with a message that names `field`.
async fn is_refused(scene: &Scene, manifest: &Manifest, field: &str) -> Result<()> {
    let Err(error) = scene.apply(manifest).await else {
        anyhow::bail!("kubectl takes it")
    };
    let error = format!("{error:#}");
    ensure!(
        error.contains("is invalid") && error.contains(field),
        "the refusal does not name {field}: {error}"
    );
    Ok(())
}
