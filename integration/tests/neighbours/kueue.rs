//! Kueue admits JobSets by quota, takes them back, and lets them restart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::POOL;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::queue::{Queue, workers};
use crate::scene::{PATIENCE, Scene};

/// Longer than Kueue lets a Workload be without ready pods.
const EVICTED: Duration = Duration::from_secs(180);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_second_waits_until_the_first_has_completed),
        case!(a_higher_priority_takes_the_quota_and_gives_it_back),
        case!(a_deactivated_workload_is_suspended_until_it_is_active_again),
        case!(a_jobset_whose_pods_do_not_become_ready_is_evicted),
        case!(a_recreation_keeps_the_admission),
        case!(a_deleted_jobset_gives_its_quota_back),
        case!(one_jobset_has_several_flavors_of_pods),
    ]
}

/// Waits until a JobSet is suspended, and has no pod.
async fn is_suspended(queue: &Queue, jobset: &str) -> Result<()> {
    queue
        .until_condition(jobset, "Suspended", "SuspendedJobs")
        .await?;
    queue.until_no_pods(jobset).await?;
    let found = queue.scene.api::<JobSet>().get(jobset).await?;
    ensure!(found.spec.suspend == Some(true), "{:?}", found.spec.suspend);
    Ok(())
}

/// Ends the pods of a JobSet, and waits until Kueue counts it as finished.
async fn completes(queue: &Queue, jobset: &str) -> Result<()> {
    queue.end(jobset, "Succeeded").await?;
    let status = queue
        .until_condition(jobset, "Completed", "AllJobsCompleted")
        .await?;
    ensure!(status.restarts == 0, "{status:?}");
    let finished = queue.until_workload(jobset, "Finished", "True").await?;
    ensure!(finished["reason"] == "Succeeded", "{finished}");
    Ok(())
}

async fn the_second_waits_until_the_first_has_completed(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    queue.create("first", 2, None, json!({})).await?;
    let pods = queue.until_running("first", 2).await?;
    for pod in &pods {
        let spec = pod.spec.as_ref().context("no spec")?;
        let selected = spec.node_selector.clone().unwrap_or_default();
        ensure!(
            selected.get(POOL) == Some(&queue.scene.namespace.name),
            "{selected:?}"
        );
        let tolerated = spec.tolerations.iter().flatten();
        ensure!(
            tolerated
                .into_iter()
                .any(|one| one.key.as_deref() == Some("spot"))
        );
    }
    queue.create("second", 2, None, json!({})).await?;
    queue.until_workload("second", "QuotaReserved", "False").await?;
    is_suspended(&queue, "second").await?;

    completes(&queue, "first").await?;
    queue.until_running("second", 2).await?;
    queue.until_workload("second", "PodsReady", "True").await?;
    completes(&queue, "second").await
}

async fn a_higher_priority_takes_the_quota_and_gives_it_back(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    let high = format!("{}-high", queue.scene.namespace.name);
    queue
        .create_global("WorkloadPriorityClass", &high, json!({"value": 1000}))
        .await?;
    queue.create("low", 2, None, json!({})).await?;
    queue.until_running("low", 2).await?;

    queue.create("high", 2, Some(&high), json!({})).await?;
    queue.until_running("high", 2).await?;
    is_suspended(&queue, "low").await?;
    let evicted = queue.until_workload("low", "Evicted", "True").await?;
    ensure!(evicted["reason"] == "Preempted", "{evicted}");

    completes(&queue, "high").await?;
    queue.until_running("low", 2).await?;
    completes(&queue, "low").await
}

async fn a_deactivated_workload_is_suspended_until_it_is_active_again(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    queue.create("js", 2, None, json!({})).await?;
    queue.until_running("js", 2).await?;
    queue
        .patch_workload("js", json!({"spec": {"active": false}}))
        .await?;
    is_suspended(&queue, "js").await?;
    queue
        .patch_workload("js", json!({"spec": {"active": true}}))
        .await?;
    queue.until_running("js", 2).await?;
    completes(&queue, "js").await
}

async fn a_jobset_whose_pods_do_not_become_ready_is_evicted(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    let mut job = workers(2);
    job["template"]["spec"]["template"]["spec"]["nodeSelector"] = json!({"there-is": "no-such-node"});
    queue
        .create("js", 2, None, json!({"replicatedJobs": [job]}))
        .await?;
    queue.until_workload("js", "Admitted", "True").await?;
    let evicted = eventually("it is evicted", EVICTED, async || {
        let evicted = queue.condition("js", "Evicted").await?.context("not evicted")?;
        ensure!(evicted["status"] == "True", "{evicted}");
        Ok(evicted)
    })
    .await?;
    ensure!(evicted["reason"] == "PodsReadyTimeout", "{evicted}");
    is_suspended(&queue, "js").await
}

async fn a_recreation_keeps_the_admission(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    queue
        .create("js", 2, None, json!({"failurePolicy": {"maxRestarts": 3}}))
        .await?;
    queue.until_running("js", 2).await?;
    let before = queue.workload("js").await?;
    queue.end("js", "Failed").await?;
    eventually("it is recreated", PATIENCE, async || {
        let status = queue.status("js").await?;
        ensure!(status.restarts == 1, "{status:?}");
        Ok(())
    })
    .await?;
    queue.until_running("js", 2).await?;
    let after = queue.workload("js").await?;
    ensure!(after.metadata.uid == before.metadata.uid, "another Workload");
    let admission = "/status/admission";
    ensure!(
        after.data.pointer(admission) == before.data.pointer(admission),
        "{:?}",
        after.data
    );
    ensure!(
        queue.condition("js", "Evicted").await?.is_none(),
        "it was evicted"
    );
    queue.end("js", "Succeeded").await?;
    queue
        .until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    queue.until_workload("js", "Finished", "True").await.map(drop)
}

async fn a_deleted_jobset_gives_its_quota_back(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    queue.create("first", 2, None, json!({})).await?;
    queue.until_running("first", 2).await?;
    queue.create("second", 2, None, json!({})).await?;
    queue.until_workload("second", "QuotaReserved", "False").await?;
    let jobsets = queue.scene.api::<JobSet>();
    jobsets.delete("first", &DeleteParams::background()).await?;
    queue.until_running("second", 2).await?;
    completes(&queue, "second").await
}

async fn one_jobset_has_several_flavors_of_pods(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 2, 6, json!({})).await?;
    let mut driver = workers(1);
    driver["name"] = json!("driver");
    let spec = json!({
        "replicatedJobs": [driver, workers(2)],
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
    });
    queue.create("js", 0, None, spec).await?;
    queue.until_running("js", 3).await?;
    let sets = queue.workload("js").await?;
    let admitted = sets.data.pointer("/status/admission/podSetAssignments");
    ensure!(
        admitted
            .and_then(|sets| sets.as_array())
            .is_some_and(|sets| sets.len() == 2),
        "{admitted:?}"
    );
    let jobs = queue.scene.api::<Job>().list(&ListParams::default()).await?;
    ensure!(jobs.items.len() == 2, "{} Jobs", jobs.items.len());
    completes(&queue, "js").await
}
