//! Gangs keep their promises when pods, nodes, Jobs or the leader disappear and come back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use lockstep_api::{GangPhase, JobSet, conditions};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::cordon::{cordon, uncordon};
use crate::ended::until_replaced;
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, WHILE, node, part};
use crate::scene::{PATIENCE, Scene};
use crate::told::note;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(volcano_5805_a_gang_comes_back_with_its_node),
        case!(a_replaced_pod_of_a_scheduled_gang_starts_at_once),
        case!(a_gang_starts_anew_after_a_suspension),
        case!(a_resumed_gang_names_the_pod_on_a_lost_node_that_it_waits_for),
        case!(a_gang_starts_anew_after_a_recreation),
        case!(an_in_place_gang_keeps_its_promise),
        case!(a_leader_killed_at_any_moment_leaves_a_gang_that_starts alone),
    ]
}

async fn volcano_5805_a_gang_comes_back_with_its_node(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 3, 1).await?;
    let set =
        Set::new("js", "Gates", [part("w", 3, 3, 1)]).with(json!({"failurePolicy": {"maxRestarts": 3}}));
    pool.create(&set).await?;
    let all = ["w-0", "w-1", "w-2"];
    pool.until_bound("js", &all).await?;
    let pods = pool.pods("js").await?;
    let lost = &pods["w-1"];
    let name = node(lost).context("it has no node")?;
    let nodes: Api<Node> = Api::all(pool.scene.client());
    nodes.delete(name, &DeleteParams::default()).await?;
    pool.delete_pod(lost).await?;
    pool.until_bound("js", &["w-0", "w-2"]).await?;
    tokio::time::sleep(WHILE).await;
    pool.more_nodes("repaired", 1).await?;
    pool.until_bound("js", &all).await?;
    let restarts = pool.status("js").await?.restarts;
    ensure!(restarts == 0, "{restarts} restarts");
    Ok(())
}

async fn a_replaced_pod_of_a_scheduled_gang_starts_at_once(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    for backend in ["Gates", "PodGroup"] {
        let set = Set::new("js", backend, [part("w", 4, 4, 1)]);
        pool.create(&set).await?;
        let all = ["w-0", "w-1", "w-2", "w-3"];
        pool.until_bound("js", &all).await?;
        pool.until_phase("js", GangPhase::Scheduled).await?;
        let pods = pool.pods("js").await?;
        pool.delete_pod(&pods["w-2"]).await?;
        until_replaced(&pool, "js", "w-2", &pods["w-2"]).await?;
        pool.delete("js").await?;
        eventually("it is gone", PATIENCE, async || {
            ensure!(
                pool.scene.api::<JobSet>().get_opt("js").await?.is_none(),
                "it is there"
            );
            Ok(())
        })
        .await?;
        pool.until_pods("js", 0).await?;
    }
    Ok(())
}

async fn a_gang_starts_anew_after_a_suspension(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    for backend in ["Gates", "PodGroup"] {
        let name = format!("js-{}", backend.to_lowercase());
        pool.create(&Set::new(&name, backend, [part("w", 4, 4, 1)]))
            .await?;
        let all = ["w-0", "w-1", "w-2", "w-3"];
        pool.until_bound(&name, &all).await?;
        pool.patch(&name, json!({"spec": {"suspend": true}})).await?;
        pool.until_pods(&name, 0).await?;
        pool.patch(&name, json!({"spec": {"suspend": false}})).await?;
        pool.until_bound(&name, &all).await?;
        pool.until_phase(&name, GangPhase::Scheduled).await?;
        pool.delete(&name).await?;
        pool.until_pods(&name, 0).await?;
    }
    Ok(())
}

/// kube-scheduler would count the old pod, so the gang waits until it is gone, and says so.
async fn a_resumed_gang_names_the_pod_on_a_lost_node_that_it_waits_for(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 5, 1).await?;
    pool.create(&Set::new("js", "PodGroup", [part("w", 4, 4, 1)]))
        .await?;
    let all = ["w-0", "w-1", "w-2", "w-3"];
    pool.until_bound("js", &all).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let lost = pool.pods("js").await?["w-1"].clone();
    pool.lose(&lost).await?;
    pool.patch("js", json!({"spec": {"suspend": true}})).await?;
    pool.until_pods("js", 0).await?;
    pool.patch("js", json!({"spec": {"suspend": false}})).await?;
    let waits = format!(
        "earlier pod {} still holds node {}, which does not report",
        lost.name_any(),
        node(&lost).context("it has no node")?
    );
    pool.until_status("js", "it says what it waits for", |status| {
        let condition = status.condition(conditions::MIN_AVAILABLE);
        condition.is_some_and(|condition| condition.status == "False" && condition.message.ends_with(&waits))
    })
    .await?;
    let said = note(&pool, "js", "Waiting").await?;
    ensure!(
        said.starts_with("the minimum number of pods is not running yet"),
        "{said}"
    );
    let bound = pool.bound("js").await?;
    ensure!(bound.is_empty(), "{bound:?}");
    let by_force = DeleteParams::default().grace_period(0);
    let pods = pool.scene.api::<Pod>();
    pods.delete(&lost.name_any(), &by_force).await?;
    pool.until_bound("js", &all).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    Ok(())
}

async fn a_gang_starts_anew_after_a_recreation(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    for backend in ["Gates", "PodGroup"] {
        let name = format!("js-{}", backend.to_lowercase());
        let mut set = Set::new(&name, backend, [part("w", 4, 4, 1)]);
        set.backoff_limit = 0;
        pool.create(&set.with(json!({"failurePolicy": {"maxRestarts": 3}})))
            .await?;
        let all = ["w-0", "w-1", "w-2", "w-3"];
        pool.until_bound(&name, &all).await?;
        pool.until_phase(&name, GangPhase::Scheduled).await?;
        pool.fail(&pool.pods(&name).await?["w-1"]).await?;
        pool.until_status(&name, "the gang of the second attempt is scheduled", |status| {
            let gang = status.gangs.first();
            status.restarts == 1
                && gang.is_some_and(|gang| gang.restart_attempt == 1 && gang.phase == GangPhase::Scheduled)
        })
        .await?;
        pool.until_bound(&name, &all).await?;
        pool.delete(&name).await?;
        pool.until_pods(&name, 0).await?;
    }
    Ok(())
}

/// A gang whose workers restart in place: recreated pods start together again, and a lost pod is
/// replaced at once.
async fn an_in_place_gang_keeps_its_promise(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let mut set = Set::new("js", "Gates", [part("w", 4, 4, 1)]);
    set.backoff_limit = 2_147_483_647;
    let strategy = json!({"failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}});
    pool.create(&set.with(strategy)).await?;
    let all = ["w-0", "w-1", "w-2", "w-3"];
    pool.until_bound("js", &all).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let lacking = format!("{}-0", pool.scene.namespace.name);
    cordon(&pool, &lacking).await?;
    // The coordinator asks for this if no daemon restarts the worker in time.
    let before = pool.status("js").await?.restarts;
    let status = json!({"status": {"restarts": before + 1, "gangs": []}});
    let jobsets = pool.scene.api::<JobSet>();
    jobsets
        .patch_status("js", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    pool.until_status("js", "the next attempt waits", |status| {
        let gang = status.gangs.first();
        gang.is_some_and(|gang| {
            gang.restart_attempt == before + 1
                && gang.phase == GangPhase::Waiting
                && gang
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains("3 fit"))
        })
    })
    .await?;
    tokio::time::sleep(WHILE).await;
    let bound = pool.bound("js").await?;
    ensure!(bound.is_empty(), "a part of it is bound: {bound:?}");
    uncordon(&pool, &lacking).await?;
    pool.until_bound("js", &all).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let pods = pool.pods("js").await?;
    pool.delete_pod(&pods["w-1"]).await?;
    until_replaced(&pool, "js", "w-1", &pods["w-1"]).await
}

async fn a_leader_killed_at_any_moment_leaves_a_gang_that_starts(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 2).await?;
    let control_plane = pool.scene.control_plane().clone();
    // The webhook marks the optional workers of a PodGroup, and dies with the leader.
    for (backend, pods) in [("Gates", 10), ("PodGroup", 8)] {
        for millis in [0, 20, 50, 100, 200, 400] {
            let name = format!("js-{}-{millis}", backend.to_lowercase());
            pool.create(&Set::new(&name, backend, [part("w", pods, 8, 1)]))
                .await?;
            // This waits for nothing: it hits a different moment of the start each time.
            tokio::time::sleep(Duration::from_millis(millis)).await;
            control_plane.kill().await?;
            control_plane.start().await?;
            pool.until_phase(&name, GangPhase::Scheduled).await?;
            let all: Vec<String> = (0..8).map(|index| format!("w-{index}")).collect();
            let bound = pool.bound(&name).await?;
            ensure!(bound == all, "killed after {millis} ms: {bound:?}");
            pool.delete(&name).await?;
            pool.until_pods(&name, 0).await?;
        }
    }
    Ok(())
}
