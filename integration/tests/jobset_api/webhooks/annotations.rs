//! What `kubectl` shows to who writes an annotation that does nothing, or cannot be.

use anyhow::{Context, Result, ensure};
use lockstep_api::JobSet;
use serde_json::{Value, json};

use super::setup;
use crate::scene::{Scene, jobset, replicated_job};

/// What `kubectl apply` says about this JobSet, where it warns of something.
async fn warned(scene: &Scene, manifest: &Value) -> Result<String> {
    let apply = ["apply", "--filename", "-", "--warnings-as-errors"];
    let result = scene.namespace.kubectl_with(&apply, &manifest.to_string()).await;
    let said = result.err().context("no warning")?;
    Ok(format!("{said:#}"))
}

pub(super) async fn an_annotation_that_does_nothing_is_named_and_the_jobset_taken(
    scene: Scene,
) -> Result<()> {
    setup::enable(&scene).await?;
    let mut manifest = jobset(json!({"suspend": true, "replicatedJobs": [replicated_job("a", 1)]}));
    manifest["metadata"]["annotations"] =
        json!({"lockstep.dev/restart-grase": "5s", "lockstep.dev/max-backoff": "5s"});
    let said = warned(&scene, &manifest).await?;
    for expected in [
        "Warning: metadata.annotations[lockstep.dev/restart-grase]: unknown annotation, did you mean lockstep.dev/restart-grace?",
        "Warning: metadata.annotations[lockstep.dev/max-backoff]: has no effect: spec.failurePolicy.restartStrategy is not InPlaceRestart",
    ] {
        ensure!(said.contains(expected), "{said}");
    }
    scene.api::<JobSet>().get("js").await?;

    // Who changes something else is not told again.
    let label = ["label", "jobset", "js", "any=label", "--warnings-as-errors"];
    scene.namespace.kubectl(&label).await?;
    manifest["metadata"]["annotations"]["lockstep.dev/supervize"] = json!("worker");
    let said = warned(&scene, &manifest).await?;
    ensure!(
        said.contains("did you mean lockstep.dev/supervise?") && !said.contains("max-backoff"),
        "{said}"
    );
    Ok(())
}
