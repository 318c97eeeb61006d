//! Upstream's in-place restart agents (KEP-467), which report in an annotation of their pods: the
//! test plays them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lockstep_api::annotations;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::placement::{bind, node};
use crate::pods::with_groups;
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case!(with_a_hub_that_no_daemon_has_found_it_is_the_same alone),
        case!(what_blocks_a_restart_of_ours_is_over_once_they_report alone),
    ];
    cases.extend(agents_of_upstream());
    cases
}

fn agents_of_upstream() -> [Case; 6] {
    [
        case!(the_barrier_lifts_when_all_agents_report_the_same),
        case!(one_restart_takes_all_others_with_it),
        case!(more_restarts_than_allowed_fail_the_jobset),
        case!(a_container_that_fails_too_fast_for_the_barrier_fails_the_jobset),
        case!(replicated_jobs_that_have_not_started_do_not_hold_the_barrier),
        case!(a_failed_job_has_all_made_anew_and_the_agents_count_on),
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

/// Waits for `expected` pods; returns their names in order.
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

async fn a_container_that_fails_too_fast_for_the_barrier_fails_the_jobset(scene: Scene) -> Result<()> {
    scene.create(with_agents(1, &replicated_job("b", 1))).await?;
    let pods = pods(&scene, 3).await?;
    reports(&scene, &pods[1], 0).await?;
    let restarted = async |times: i32| {
        let status = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "worker", "image": "none", "imageID": "", "ready": false, "restartCount": times,
        }]}});
        let api = scene.api::<Pod>();
        api.patch_status(&pods[0], &PatchParams::default(), &Patch::Merge(status))
            .await
    };
    restarted(1).await?;
    for pod in &pods {
        reports(&scene, pod, 0).await?;
    }
    until_attempts(&scene, None, Some(0)).await?;
    restarted(2).await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}

async fn a_failed_job_has_all_made_anew_and_the_agents_count_on(scene: Scene) -> Result<()> {
    let mut manifest = with_agents(1, &replicated_job("b", 1));
    let codes = json!({"operator": "In", "values": [42]});
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"] =
        json!({"rules": [{"action": "FailJob", "onExitCodes": codes}]});
    scene.create(manifest).await?;
    for pod in pods(&scene, 3).await? {
        reports(&scene, &pod, 0).await?;
    }
    until_attempts(&scene, None, Some(0)).await?;
    scene.pods_exit("js-a-0", 42).await?;
    let all = ["js-a-0", "js-a-1", "js-b-0"];
    scene.until_jobs(&all, 1).await?;
    for pod in pods(&scene, 3).await? {
        reports(&scene, &pod, 1).await?;
    }
    // The others follow the first worker that reports. If all report before the control plane
    // looks, none has to follow.
    scene
        .until_status("current 1", |status| {
            status.current_in_place_restart_attempt == Some(1)
                && [None, Some(0)].contains(&status.previous_in_place_restart_attempt)
        })
        .await?;
    let status = scene.status().await?;
    let restarts = (status.restarts, status.restarts_count_towards_max);
    ensure!(restarts == (1, 1), "{restarts:?}");
    ensure!(status.terminal_state.is_none());
    scene.until_jobs(&all, 1).await?;

    scene.pods_exit("js-a-1", 42).await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}

async fn with_a_hub_that_no_daemon_has_found_it_is_the_same(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        for case in agents_of_upstream() {
            let scene = scene.another().await?;
            let namespace = scene.namespace.clone();
            (case.body)(scene).await.context(case.name)?;
            namespace.delete().await?;
        }
        Ok(())
    });
    with_groups(&scene, &[], body).await
}

async fn what_blocks_a_restart_of_ours_is_over_once_they_report(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        let mut manifest = with_agents(3, &replicated_job("b", 1));
        manifest["metadata"]["annotations"] = json!({annotations::IN_PLACE_TIMEOUT: "2s"});
        scene.create(manifest).await?;
        let pods = pods(&scene, 3).await?;
        let node = node(&scene, "n", json!({})).await?;
        bind(&scene, &pods[0], &node).await?;
        scene.all_pods_become("Running").await?;
        scene
            .until_condition("RestartBlocked", "True", "WorkerNotReported")
            .await?;
        for pod in &pods {
            reports(&scene, pod, 0).await?;
        }
        until_attempts(&scene, None, Some(0)).await?;
        scene
            .until_condition("RestartBlocked", "False", "Unblocked")
            .await?;
        Ok(())
    });
    with_groups(&scene, &[], body).await
}
