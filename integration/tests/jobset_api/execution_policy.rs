//! `spec.executionPolicy`: replicatedJobs that run one after the other (KEP-672).

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::order::{begins_anew, depending, only};
use crate::scene::{PATIENCE, REFUSED, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(an_execution_policy_runs_one_replicated_job_after_the_other),
        case!(an_execution_policy_holds_while_suspended),
        case!(a_restart_with_an_execution_policy_begins_with_the_first),
        case!(an_execution_policy_can_wait_for_failure),
        case!(an_execution_policy_can_wait_for_pods_that_are_not_ready),
        case!(a_job_of_a_sequence_can_be_made_anew_alone),
        case!(a_first_that_fails_holds_the_others_back_until_it_is_ready_again),
        case!(an_execution_policy_that_names_no_order_has_none),
        case!(the_schema_refuses_orders_that_exclude_each_other),
    ]
}

pub(crate) fn ordered(status: &str, more: Value) -> Value {
    let jobs = ["a", "b", "c"].map(|name| replicated_job(name, 1));
    let mut spec = json!({
        "executionPolicy": {"executionPolicyOrder": "InOrder", "replicatedJobsStatus": status},
        "replicatedJobs": jobs,
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    jobset(spec)
}

async fn an_execution_policy_runs_one_replicated_job_after_the_other(scene: Scene) -> Result<()> {
    scene.create(ordered("Succeeded", json!({}))).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Running").await?;
    only(&scene, "a is ready", &["js-a-0"], ("a", 1, 0)).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    scene.pods_become("js-c-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    Ok(())
}

async fn an_execution_policy_holds_while_suspended(scene: Scene) -> Result<()> {
    scene.create(ordered("Ready", json!({"suspend": true}))).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    Ok(())
}

async fn a_restart_with_an_execution_policy_begins_with_the_first(scene: Scene) -> Result<()> {
    let policy = json!({"failurePolicy": {"maxRestarts": 1}});
    scene.create(ordered("Succeeded", policy)).await?;
    begins_anew(&scene).await
}

async fn an_execution_policy_can_wait_for_failure(scene: Scene) -> Result<()> {
    scene.create(ordered("Failed", json!({}))).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Failed").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    ensure!(scene.status().await?.terminal_state.is_none());
    scene.pods_become("js-c-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    Ok(())
}

/// A quota for this many pods.
async fn quota(scene: &Scene, pods: u32) -> Result<()> {
    let quota = json!({"metadata": {"name": "pods"}, "spec": {"hard": {"pods": pods.to_string()}}});
    let quotas = scene.api::<ResourceQuota>();
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    eventually("the quota is in force", PATIENCE, async || {
        let status = quotas.get("pods").await?.status;
        ensure!(status.and_then(|status| status.used).is_some(), "no status yet");
        Ok(())
    })
    .await
}

async fn an_execution_policy_can_wait_for_pods_that_are_not_ready(scene: Scene) -> Result<()> {
    quota(&scene, 1).await?;
    let policy = json!({"executionPolicyOrder": "InOrder", "replicatedJobsStatus": "Active"});
    let jobs = [
        replicated_job("a", 2),
        replicated_job("b", 1),
        replicated_job("c", 1),
    ];
    scene
        .create(jobset(json!({"executionPolicy": policy, "replicatedJobs": jobs})))
        .await?;
    let first = ["js-a-0", "js-a-1"];
    scene
        .until_status("one of two has its pod", |status| {
            status
                .replicated_job("a")
                .is_some_and(|counts| (counts.active, counts.ready) == (1, 0))
        })
        .await?;
    scene.until_jobs(&first, 0).await?;
    let wide = Patch::Merge(json!({"spec": {"hard": {"pods": "9"}}}));
    scene
        .api::<ResourceQuota>()
        .patch("pods", &PatchParams::default(), &wide)
        .await?;
    eventually("the other one has its pod", REFUSED, async || {
        let status = scene.status().await?;
        let counts = status.replicated_job("a").map(|counts| counts.active);
        ensure!(counts == Some(2), "{counts:?}");
        Ok(())
    })
    .await?;
    scene
        .until_jobs(&["js-a-0", "js-a-1", "js-b-0", "js-c-0"], 0)
        .await?;
    let status = scene
        .until_status("all are active", |status| {
            status
                .replicated_jobs_status
                .iter()
                .all(|counts| counts.active > 0)
        })
        .await?;
    ensure!(
        status
            .replicated_jobs_status
            .iter()
            .all(|counts| counts.ready == 0)
    );
    Ok(())
}

async fn a_job_of_a_sequence_can_be_made_anew_alone(scene: Scene) -> Result<()> {
    let rule = json!({"name": "again", "action": "RestartJob", "targetReplicatedJobs": ["b"]});
    let policy = json!({"failurePolicy": {"maxRestarts": 1, "rules": [rule]}});
    scene.create(ordered("Succeeded", policy)).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    let both = ["js-a-0", "js-b-0"];
    let before = scene.until_jobs(&both, 0).await?;
    scene.pods_become("js-b-0", "Failed").await?;
    eventually("only b is recreated", PATIENCE, async || {
        let jobs = scene.until_jobs(&both, 0).await?;
        ensure!(jobs[0].uid() == before[0].uid());
        ensure!(jobs[1].uid() != before[1].uid(), "it is not");
        Ok(())
    })
    .await?;
    scene.pods_become("js-b-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    scene.pods_become("js-c-0", "Succeeded").await?;
    let status = scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    let of_b = status
        .replicated_job("b")
        .map(|counts| counts.job_restarts.clone());
    ensure!(status.restarts == 0 && of_b == Some(vec![1]), "{of_b:?}");
    Ok(())
}

async fn a_first_that_fails_holds_the_others_back_until_it_is_ready_again(scene: Scene) -> Result<()> {
    for status in ["Ready", "Active"] {
        let scene = scene.another().await?;
        let policy = json!({"failurePolicy": {"maxRestarts": 1}});
        scene.create(ordered(status, policy)).await?;
        for job in ["js-a-0", "js-b-0", "js-c-0"] {
            scene.pods_become(job, "Running").await?;
        }
        scene.pods_become("js-a-0", "Failed").await?;
        if status == "Ready" {
            scene.until_jobs(&["js-a-0"], 1).await?;
            scene.pods_become("js-a-0", "Running").await?;
            scene.until_jobs(&["js-a-0", "js-b-0"], 1).await?;
            scene.pods_become("js-b-0", "Running").await?;
        }
        scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 1).await?;
        scene.pods_become("js-a-0", "Failed").await?;
        scene
            .until_condition("Failed", "True", "ReachedMaxRestarts")
            .await?;
        scene.namespace.delete().await?;
    }
    Ok(())
}

async fn an_execution_policy_that_names_no_order_has_none(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), replicated_job("b", 1)];
    let policy = json!({"replicatedJobsStatus": "Failed"});
    let js = scene
        .create(jobset(json!({"executionPolicy": policy, "replicatedJobs": jobs})))
        .await?;
    let stored = serde_json::to_value(&js.spec.execution_policy)?;
    ensure!(
        stored == json!({"executionPolicyOrder": "AnyOrder", "replicatedJobsStatus": "Failed"}),
        "{stored}"
    );
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    // Nothing waits for the failure, so it counts as usual.
    scene.pods_become("js-a-0", "Failed").await?;
    scene.until_condition("Failed", "True", "FailedJobs").await?;
    Ok(())
}

async fn the_schema_refuses_orders_that_exclude_each_other(scene: Scene) -> Result<()> {
    let refused = async |manifest: Value, message: &str| -> Result<()> {
        let error = scene.create(manifest).await.err().map(|error| error.to_string());
        ensure!(
            error.as_ref().is_some_and(|error| error.contains(message)),
            "{error:?}"
        );
        Ok(())
    };
    let in_order = json!({"startupPolicyOrder": "InOrder"});
    refused(
        ordered("Ready", json!({"startupPolicy": in_order})),
        "ExecutionPolicy and StartupPolicy APIs are mutually exclusive",
    )
    .await?;
    let mut both = ordered("Ready", json!({}));
    both["spec"]["replicatedJobs"][1] = depending("b", &[("a", "Ready")]);
    refused(both, "ExecutionPolicy and DependsOn APIs are mutually exclusive").await?;
    refused(
        ordered("Done", json!({})),
        "replicatedJobsStatus: Unsupported value",
    )
    .await?;

    let js = scene.create(ordered("Ready", json!({}))).await?;
    ensure!(js.spec.execution_policy.is_some());
    for policy in [json!(null), json!({"replicatedJobsStatus": "Active"})] {
        let changed = scene.patch(json!({"spec": {"executionPolicy": policy}})).await;
        let error = changed.err().map(|error| error.to_string());
        ensure!(
            error.as_ref().is_some_and(
                |error| error.contains("spec.executionPolicy") && error.contains("Value is immutable")
            ),
            "{error:?}"
        );
    }
    Ok(())
}
