//! What `kubectl` shows for an annotation that has no effect or is invalid.

use anyhow::{Result, bail, ensure};
use lockstep_api::JobSet;
use lockstep_api::annotations::{ESCALATE_AFTER, EXCLUSIVE_TOPOLOGY, RESTART_REQUEST, STANDBY};
use serde_json::{Value, json};

use super::{ensure_invalid, setup};
use crate::scene::{Scene, jobset, replicated_job};

/// The warning of `kubectl apply` about this JobSet.
async fn warned(scene: &Scene, manifest: &Value) -> Result<String> {
    let apply = ["apply", "--filename", "-", "--warnings-as-errors"];
    match scene.namespace.kubectl_with(&apply, &manifest.to_string()).await {
        Ok(said) => bail!("no warning: {said}"),
        Err(said) => Ok(format!("{said:#}")),
    }
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
        "Warning: metadata.annotations[lockstep.dev/restart-grase]: unknown annotation: did you mean lockstep.dev/restart-grace?",
        "Warning: metadata.annotations[lockstep.dev/max-backoff]: has no effect: spec.failurePolicy.restartStrategy is not InPlaceRestart",
    ] {
        ensure!(said.contains(expected), "{said}");
    }
    scene.api::<JobSet>().get("js").await?;

    // A change of something else does not repeat the warning. A change of only annotations is
    // checked too.
    let other = r#"{"spec": {"ttlSecondsAfterFinished": 100}}"#;
    let patch = [
        "patch",
        "jobset",
        "js",
        "--type=merge",
        "--warnings-as-errors",
        "--patch",
        other,
    ];
    scene.namespace.kubectl(&patch).await?;
    manifest["metadata"]["annotations"]["lockstep.dev/supervize"] = json!("worker");
    let said = warned(&scene, &manifest).await?;
    ensure!(
        said.contains("did you mean lockstep.dev/supervise?") && !said.contains("max-backoff"),
        "{said}"
    );
    Ok(())
}

pub(super) async fn an_annotation_that_cannot_be_is_refused(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    let mut job = replicated_job("a", 1);
    job["template"]["spec"]["backoffLimit"] = json!(i32::MAX);
    let policy = json!({"restartStrategy": "InPlaceRestart"});
    let mut manifest = jobset(json!({"suspend": true, "failurePolicy": policy, "replicatedJobs": [job]}));
    for (key, value, expected) in [
        (RESTART_REQUEST, "", "must be 1 to 1024 bytes long, not 0"),
        (
            RESTART_REQUEST,
            &"x".repeat(100_000),
            "must be 1 to 1024 bytes long, not 100000",
        ),
        (
            ESCALATE_AFTER,
            "1/1ns",
            "must be a number of failures from 1 to 100 and a duration of at least 1s",
        ),
        (
            STANDBY,
            "julia",
            "\"julia\" must be \"python\", \"program\" or \"none\"",
        ),
    ] {
        manifest["metadata"]["annotations"] = json!({key: value});
        ensure_invalid(scene.create(manifest.clone()).await, expected)?;
    }
    // Upstream accepts this one, and so do we.
    manifest["metadata"]["annotations"] = json!({EXCLUSIVE_TOPOLOGY: ""});
    let said = warned(&scene, &manifest).await?;
    ensure!(said.contains("is not a valid node label key"), "{said}");
    scene.api::<JobSet>().get("js").await?;
    Ok(())
}
