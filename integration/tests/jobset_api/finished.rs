//! Jobs that are removed after they have completed: completed work stays completed.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_api::{JobSet, JobSetStatus};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::pods::{start, with_groups};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_that_is_removed_when_it_has_completed_is_not_run_again_and_counts),
        case!(whoever_leads_next_knows_of_it alone),
        case!(in_place_nobody_is_restarted_for_it alone),
    ]
}

/// A `prep` of two Jobs, `main` beside it, and `after`, which follows it.
fn manifest(strategy: &str) -> Value {
    let mut prep = replicated_job("prep", 2);
    let mut main = replicated_job("main", 1);
    let mut after = replicated_job("after", 1);
    after["dependsOn"] = json!([{"name": "prep", "status": "Complete"}]);
    for job in [&mut prep, &mut main, &mut after] {
        if strategy == "InPlaceRestart" {
            job["template"]["spec"]["backoffLimit"] = json!(i32::MAX);
        }
    }
    jobset(json!({
        "failurePolicy": {"maxRestarts": 3, "restartStrategy": strategy},
        "replicatedJobs": [prep, main, after],
    }))
}

/// Has the pods of the Job succeed, and waits until it is complete.
async fn completes(scene: &Scene, job: &str) -> Result<()> {
    scene.pods_become(job, "Succeeded").await?;
    eventually(&format!("{job} has completed"), PATIENCE, async || {
        let found: Job = scene.api().get(job).await?;
        let conditions = found
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        ensure!(conditions.iter().any(|condition| condition.type_ == "Complete"));
        Ok(())
    })
    .await
}

async fn removed(scene: &Scene, job: &str) -> Result<()> {
    let api = scene.api::<Job>();
    let before = api.get(job).await?.uid();
    api.delete(job, &DeleteParams::background()).await?;
    eventually(&format!("{job} is removed"), PATIENCE, async || {
        let found = api.get_opt(job).await?;
        ensure!(found.is_none_or(|found| found.uid() != before));
        Ok(())
    })
    .await
}

fn succeeded(status: &JobSetStatus, name: &str) -> Option<i32> {
    status.replicated_job(name).map(|counts| counts.succeeded)
}

/// The rest completes too; nothing ran twice, and nothing restarted.
async fn ends_well(scene: &Scene) -> Result<()> {
    scene.until_jobs(&["js-after-0", "js-main-0"], 0).await?;
    scene.pods_become("js-after-0", "Succeeded").await?;
    scene.pods_become("js-main-0", "Succeeded").await?;
    let status = scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    ensure!(succeeded(&status, "prep") == Some(2), "{status:?}");
    ensure!(status.restarts == 0, "{status:?}");
    let in_place = status.in_place_restart.unwrap_or_default();
    ensure!((in_place.restarts, in_place.generation) == (0, 0), "{in_place:?}");
    let names: Vec<String> = scene.jobs().await?.iter().map(ResourceExt::name_any).collect();
    ensure!(names == ["js-after-0", "js-main-0"], "{names:?}");
    Ok(())
}

async fn a_job_that_is_removed_when_it_has_completed_is_not_run_again_and_counts(scene: Scene) -> Result<()> {
    scene.create(manifest("Recreate")).await?;
    scene
        .until_jobs(&["js-main-0", "js-prep-0", "js-prep-1"], 0)
        .await?;
    scene.pods_become("js-main-0", "Running").await?;
    // Once immediately, and once after the status shows it.
    completes(&scene, "js-prep-0").await?;
    removed(&scene, "js-prep-0").await?;
    scene
        .until_status("the first is done", |status| succeeded(status, "prep") == Some(1))
        .await?;
    scene.until_jobs(&["js-main-0", "js-prep-1"], 0).await?;
    completes(&scene, "js-prep-1").await?;
    scene
        .until_status("both are done", |status| succeeded(status, "prep") == Some(2))
        .await?;
    removed(&scene, "js-prep-1").await?;
    ends_well(&scene).await
}

async fn whoever_leads_next_knows_of_it(scene: Scene) -> Result<()> {
    scene.create(manifest("Recreate")).await?;
    scene
        .until_jobs(&["js-main-0", "js-prep-0", "js-prep-1"], 0)
        .await?;
    scene.pods_become("js-main-0", "Running").await?;
    for job in ["js-prep-0", "js-prep-1"] {
        completes(&scene, job).await?;
    }
    scene
        .until_status("both are done", |status| succeeded(status, "prep") == Some(2))
        .await?;
    scene.control_plane().kill().await?;
    for job in ["js-prep-0", "js-prep-1"] {
        removed(&scene, job).await?;
    }
    scene.control_plane().start().await?;
    ends_well(&scene).await
}

async fn in_place_nobody_is_restarted_for_it(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        scene.create(manifest("InPlaceRestart")).await?;
        scene
            .until_jobs(&["js-main-0", "js-prep-0", "js-prep-1"], 0)
            .await?;
        for job in ["js-main-0", "js-prep-0", "js-prep-1"] {
            scene.pods_become(job, "Running").await?;
        }
        // As the group's coordinator reports, once it knows from the node daemons.
        let status = json!({"status": {
            "inPlaceRestart": {"kind": "Supervised", "phase": "InSync", "started": ["main", "prep"]},
        }});
        let api = scene.api::<JobSet>();
        api.patch_status("js", &PatchParams::default(), &Patch::Merge(status))
            .await?;
        completes(&scene, "js-prep-0").await?;
        removed(&scene, "js-prep-0").await?;
        scene
            .until_status("the first is done", |status| succeeded(status, "prep") == Some(1))
            .await?;
        scene.control_plane().kill().await?;
        start(&scene, &[]).await?;
        completes(&scene, "js-prep-1").await?;
        scene
            .until_status("both are done", |status| succeeded(status, "prep") == Some(2))
            .await?;
        removed(&scene, "js-prep-1").await?;
        ends_well(&scene).await
    });
    with_groups(&scene, &[], body).await
}
