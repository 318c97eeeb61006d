//! Upstream's in-place restart agents (KEP-467), which report by an annotation of their pods: the test plays them.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lockstep_api::annotations;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_barrier_lifts_when_all_agents_report_the_same),
        case!(one_restart_takes_all_others_with_it),
        case!(more_restarts_than_allowed_fail_the_jobset),
        case!(replicated_jobs_that_have_not_started_do_not_hold_the_barrier),
    ]
}

fn with_agents(max_restarts: i32, second: &Value) -> Value {
    let mut jobs = [replicated_job("a", 2), second.clone()];
    for job in &mut jobs {
        job["template"]["spec"]["backoffLimit"] = json!(i32::MAX);
        job["template"]["spec"]["podReplacementPolicy"] = json!("Failed");
    }
    jobset(json!({
        "failurePolicy": {"maxRestarts": max_restarts, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": jobs,
    }))
}

/// Waits for `expected` pods; their names, in order.
async fn pods(scene: &Scene, expected: usize) -> Result<Vec<String>> {
    eventually(&format!("{expected} pods"), PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        let mut names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        names.sort();
        ensure!(names.len() == expected, "{names:?}");
        Ok(names)
    })
    .await
}

async fn reports(scene: &Scene, pod: &str, attempt: i32) -> Result<()> {
    let annotation = json!({annotations::IN_PLACE_RESTART_ATTEMPT: attempt.to_string()});
    let patch = json!({"metadata": {"annotations": annotation}});
    scene
        .api::<Pod>()
        .patch(pod, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

async fn until_attempts(scene: &Scene, previous: Option<i32>, current: Option<i32>) -> Result<()> {
    let what = format!("previous {previous:?}, current {current:?}");
    scene
        .until_status(&what, |status| {
            status.previous_in_place_restart_attempt == previous
                && status.current_in_place_restart_attempt == current
        })
        .await?;
    Ok(())
}

async fn the_barrier_lifts_when_all_agents_report_the_same(scene: Scene) -> Result<()> {
    scene.create(with_agents(3, &replicated_job("b", 1))).await?;
    let pods = pods(&scene, 3).await?;
    reports(&scene, &pods[0], 0).await?;
    reports(&scene, &pods[1], 0).await?;
    reports(&scene, &pods[2], 0).await?;
    until_attempts(&scene, None, Some(0)).await
}

async fn one_restart_takes_all_others_with_it(scene: Scene) -> Result<()> {
    scene.create(with_agents(3, &replicated_job("b", 1))).await?;
    let pods = pods(&scene, 3).await?;
    for pod in &pods {
        reports(&scene, pod, 0).await?;
    }
    until_attempts(&scene, None, Some(0)).await?;
    reports(&scene, &pods[1], 1).await?;
    until_attempts(&scene, Some(0), Some(0)).await?;
    reports(&scene, &pods[0], 1).await?;
    reports(&scene, &pods[2], 1).await?;
    until_attempts(&scene, Some(0), Some(1)).await?;
    ensure!(scene.status().await?.terminal_state.is_none());
    Ok(())
}

async fn more_restarts_than_allowed_fail_the_jobset(scene: Scene) -> Result<()> {
    scene.create(with_agents(1, &replicated_job("b", 1))).await?;
    let pods = pods(&scene, 3).await?;
    reports(&scene, &pods[0], 2).await?;
    let status = scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    ensure!(
        status
            .condition("Failed")
            .is_some_and(|failed| failed.message == "jobset failed due to reaching max number of restarts")
    );
    Ok(())
}

async fn replicated_jobs_that_have_not_started_do_not_hold_the_barrier(scene: Scene) -> Result<()> {
    let mut second = replicated_job("b", 1);
    second["dependsOn"] = json!([{"name": "a", "status": "Ready"}]);
    scene.create(with_agents(3, &second)).await?;
    for pod in pods(&scene, 2).await? {
        reports(&scene, &pod, 0).await?;
    }
    until_attempts(&scene, None, Some(0)).await
}
