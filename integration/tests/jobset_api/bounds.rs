//! JobSets above the limits: numbers of a few bytes that would expand to gigabytes.

use anyhow::{Result, ensure};
use kube::api::{Api, DeleteParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::invalid::fails_with;
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};
use crate::told::events;
use crate::webhooks::{ensure_invalid, setup};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_jobset_that_is_too_large_is_named_and_makes_nothing_and_others_go_on),
        case!(a_jobset_that_is_too_large_is_refused),
        case!(more_jobs_than_fit_into_a_batch_are_all_made),
    ]
}

/// More Jobs than the limit, each of one pod.
fn jobs() -> Value {
    jobset(json!({"suspend": true, "replicatedJobs": [replicated_job("w", i32::MAX)]}))
}

/// Few Jobs with more pods than the limit.
fn workers() -> Value {
    let mut wide = replicated_job("w", 60);
    wide["template"]["spec"] = json!({
        "parallelism": 100_000,
        "completions": 100_000,
        "template": wide["template"]["spec"]["template"],
    });
    jobset(json!({
        "suspend": true,
        "failurePolicy": {"maxRestarts": 1, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": [wide],
    }))
}

const JOBS: &str =
    "spec.replicatedJobs[0].replicas: Invalid value: 2147483647: a JobSet may have at most 20000 Jobs";
const WORKERS: &str = "spec.replicatedJobs[0].template.spec.parallelism: Invalid value: 100000: 60 x 100000 pods are 6000000 workers, but a \
                       JobSet may have at most 100000";

async fn a_jobset_that_is_too_large_is_named_and_makes_nothing_and_others_go_on(scene: Scene) -> Result<()> {
    for (manifest, expected) in [(jobs(), JOBS), (workers(), WORKERS)] {
        let scene = scene.another().await?;
        fails_with(&scene, manifest, expected).await?;

        // Another JobSet in the same namespace, served by the same control plane.
        let mut other = jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}));
        other["metadata"]["name"] = json!("other");
        scene.create(other).await?;
        scene.until_jobs(&["other-a-0"], 0).await?;
        ensure!(
            events(&scene, "InvalidJobSet").await?.len() == 1,
            "it is reported once"
        );

        let api: Api<JobSet> = scene.api();
        api.delete("js", &DeleteParams::default()).await?;
        eventually("it is gone", PATIENCE, async || {
            ensure!(api.get_opt("js").await?.is_none());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn a_jobset_that_is_too_large_is_refused(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    for (manifest, expected) in [(jobs(), JOBS), (workers(), WORKERS)] {
        ensure_invalid(scene.create(manifest).await, expected)?;
    }
    Ok(())
}

async fn more_jobs_than_fit_into_a_batch_are_all_made(scene: Scene) -> Result<()> {
    // Four of these fill a batch by their size.
    let mut long = replicated_job("a", 5);
    let variables: Vec<Value> = (0..9)
        .map(|index| json!({"name": format!("V{index}"), "value": "x".repeat(100_000)}))
        .collect();
    long["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = json!(variables);
    scene
        .create(jobset(json!({"suspend": true, "replicatedJobs": [long]})))
        .await?;
    scene
        .until_jobs(&["js-a-0", "js-a-1", "js-a-2", "js-a-3", "js-a-4"], 0)
        .await?;
    Ok(())
}
