//! PodGroups with pods that have ended: kube-scheduler does not count these.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::{GangPhase, conditions};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::cordon::{cordon, uncordon};
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, WHILE, node, part};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_pod_is_replaced_after_others_of_its_pod_group_have_ended),
        case!(a_pod_group_is_resumed_without_those_that_have_ended),
    ]
}

/// The policies of the set's PodGroups.
async fn policies(pool: &Pool) -> Result<Vec<serde_json::Value>> {
    let groups = pool.scheduling("podgroups").await?;
    let policies = groups
        .iter()
        .map(|group| group.data["spec"]["schedulingPolicy"].clone());
    Ok(policies.collect())
}

/// Waits until another pod is bound in place of this one.
pub(crate) async fn until_replaced(pool: &Pool, set: &str, place: &str, before: &Pod) -> Result<()> {
    eventually("another pod is bound in its place", PATIENCE, async || {
        let now = pool.pods(set).await?;
        let replaced = now.get(place).context("none yet")?;
        ensure!(replaced.uid() != before.uid(), "still the same");
        ensure!(node(replaced).is_some(), "not bound");
        Ok(())
    })
    .await
}

/// Waits until the Job controller has counted this many succeeded pods over all Jobs.
async fn until_succeeded(pool: &Pool, count: i32) -> Result<()> {
    eventually(&format!("{count} have succeeded"), PATIENCE, async || {
        let jobs = pool.scene.jobs().await?;
        let counted: i32 = jobs.iter().filter_map(|job| job.status.as_ref()?.succeeded).sum();
        ensure!(counted == count, "{counted}");
        Ok(())
    })
    .await
}

async fn a_pod_is_replaced_after_others_of_its_pod_group_have_ended(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 5, 1).await?;
    pool.create(&Set::new(
        "js",
        "PodGroup",
        [part("a", 2, 2, 1), part("b", 3, 3, 1)],
    ))
    .await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let pods = pool.until_pods("js", 5).await?;
    // One Job of the gang is complete, and another is partly complete.
    for place in ["a-0", "a-1", "b-0"] {
        pool.succeed(&pods[place]).await?;
    }
    until_succeeded(&pool, 3).await?;
    ensure!(policies(&pool).await? == [json!({"gang": {"minCount": 5}})]);
    pool.delete_pod(&pods["b-1"]).await?;
    until_replaced(&pool, "js", "b-1", &pods["b-1"]).await?;
    ensure!(policies(&pool).await? == [json!({"basic": {}})]);
    let now = pool.pods("js").await?;
    ensure!(now["b-2"].uid() == pods["b-2"].uid(), "a healthy one was touched");
    for place in ["b-1", "b-2"] {
        pool.succeed(&now[place]).await?;
    }
    let status = pool
        .until_condition("js", conditions::COMPLETED, "AllJobsCompleted")
        .await?;
    ensure!(status.restarts == 0, "{} restarts", status.restarts);
    Ok(())
}

async fn a_pod_group_is_resumed_without_those_that_have_ended(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    pool.create(&Set::new("js", "PodGroup", [part("w", 4, 4, 1)]))
        .await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let pods = pool.until_pods("js", 4).await?;
    pool.succeed(&pods["w-0"]).await?;
    until_succeeded(&pool, 1).await?;
    // From now on its PodGroup lets each pod start by itself.
    pool.delete_pod(&pods["w-1"]).await?;
    until_replaced(&pool, "js", "w-1", &pods["w-1"]).await?;
    pool.patch("js", json!({"spec": {"suspend": true}})).await?;
    pool.until_pods("js", 1).await?;
    let lacking = [0, 1].map(|number| format!("{}-{number}", pool.scene.namespace.name));
    for node in &lacking {
        cordon(&pool, node).await?;
    }
    pool.patch("js", json!({"spec": {"suspend": false}})).await?;
    pool.until_pods("js", 4).await?;
    let waits = "needs 3 pods x 1 cpu, 2 fit: 1 short of cpu";
    pool.until_status("js", "it says what is missing", |status| {
        let message = status.gangs.first().and_then(|gang| gang.message.as_deref());
        message.is_some_and(|message| message.starts_with(waits))
    })
    .await?;
    // It is not written together with the status.
    eventually("its PodGroup asks for the three", PATIENCE, async || {
        let policies = policies(&pool).await?;
        ensure!(policies == [json!({"gang": {"minCount": 3}})], "{policies:?}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(WHILE).await;
    let bound = pool.bound("js").await?;
    ensure!(bound == ["w-0"], "part of it is bound: {bound:?}");
    for node in &lacking {
        uncordon(&pool, node).await?;
    }
    pool.until_bound("js", &["w-0", "w-1", "w-2", "w-3"]).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let again = pool.pods("js").await?;
    ensure!(
        again["w-0"].uid() == pods["w-0"].uid(),
        "completed pods run again"
    );
    Ok(())
}
