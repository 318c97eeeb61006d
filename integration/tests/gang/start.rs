//! Which gangs start, and what the others hold.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ListParams, PostParams};
use lockstep_api::{GangPhase, JobSetStatus, conditions};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::crowd::until_seen;
use crate::ended::until_replaced;
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, WHILE, part};
use crate::scene::{PATIENCE, Scene};
use crate::told::note;
use crate::watcher::Watcher;
use crate::webhooks;

/// Enough for a busy machine to bind pods that have room, and far less than the time-out.
const BRIEFLY: Duration = Duration::from_secs(10);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_gang_without_room_holds_nothing_and_says_what_is_missing),
        case!(a_pod_group_without_room_holds_nothing),
        case!(volcano_3373_two_gangs_that_need_more_than_half_both_finish),
        case!(two_pod_groups_that_need_more_than_half_both_finish),
        case!(volcano_2462_what_is_not_bound_in_time_is_given_back),
        case!(a_higher_priority_starts_first),
        case!(the_chart_allows_what_gangs_take alone),
    ]
}

async fn a_gang_without_room_holds_nothing_and_says_what_is_missing(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 3, 4).await?;
    pool.create(&Set::new("big", "Gates", [part("w", 7, 7, 2)]))
        .await?;
    pool.until_pods("big", 7).await?;
    let lacks = |status: &JobSetStatus| {
        let gang = status.gangs.first();
        gang.is_some_and(|gang| {
            let message = gang.message.as_deref().unwrap_or_default();
            let says = message.contains("7 pods") && message.contains("6 fit");
            says && gang.phase == GangPhase::Waiting && gang.min_available == 7
        })
    };
    pool.until_status("big", "it says what is missing", lacks).await?;
    // It can never fit, so it blocks no other gang.
    pool.create(&Set::new("small", "Gates", [part("w", 6, 6, 2)]))
        .await?;
    pool.until_bound("small", &["w-0", "w-1", "w-2", "w-3", "w-4", "w-5"])
        .await?;
    pool.until_condition("small", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    pool.until_phase("small", GangPhase::Scheduled).await?;
    note(&pool, "small", "GangScheduled").await?;
    ensure!(pool.bound("big").await?.is_empty());
    pool.until_condition("big", conditions::MIN_AVAILABLE, "Waiting")
        .await?;
    Ok(())
}

async fn a_pod_group_without_room_holds_nothing(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 3, 4).await?;
    pool.create(&Set::new("big", "PodGroup", [part("w", 7, 7, 2)]))
        .await?;
    let pods = pool.until_pods("big", 7).await?;
    let grouped = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.scheduling_group.is_some())
    };
    ensure!(pods.values().all(grouped), "not in a group: {pods:?}");
    pool.until_phase("big", GangPhase::Waiting).await?;
    pool.create(&Set::new("small", "Auto", [part("w", 6, 6, 2)]))
        .await?;
    pool.until_bound("small", &["w-0", "w-1", "w-2", "w-3", "w-4", "w-5"])
        .await?;
    let pods = pool.pods("small").await?;
    ensure!(pods.values().all(grouped), "Auto is not PodGroup: {pods:?}");
    pool.until_phase("small", GangPhase::Scheduled).await?;
    ensure!(pool.bound("big").await?.is_empty());
    Ok(())
}

/// Neither holds nodes in part until its time-out: they do not block each other.
async fn both_finish(scene: Scene, backend: &'static str) -> Result<()> {
    let pool = Pool::new(scene, 5, 2).await?;
    let set = |name: &str| {
        let set = Set::new(name, backend, [part("w", 6, 6, 1)]).runs(Duration::from_secs(1));
        set.timeout(60)
    };
    let sets = ["one", "two"].map(set);
    let watcher = Watcher::start(pool.scene.api(), &sets);
    for set in &sets {
        pool.create(set).await?;
    }
    for name in ["one", "two"] {
        pool.until_condition(name, "Completed", "AllJobsCompleted")
            .await?;
    }
    for (name, seen) in until_seen(&watcher, &sets).await? {
        let partial = seen.longest_partial;
        ensure!(partial < BRIEFLY, "{name} held nodes in part for {partial:?}");
    }
    Ok(())
}

async fn volcano_3373_two_gangs_that_need_more_than_half_both_finish(scene: Scene) -> Result<()> {
    both_finish(scene, "Gates").await
}

async fn two_pod_groups_that_need_more_than_half_both_finish(scene: Scene) -> Result<()> {
    both_finish(scene, "PodGroup").await
}

/// The fit check does not understand pod anti-affinity: one of four pods finds no place on three
/// nodes.
async fn volcano_2462_what_is_not_bound_in_time_is_given_back(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 3, 4).await?;
    // Lets the time-out pass, but only once three pods are bound.
    let mut set = Set::new("js", "Gates", [part("w", 4, 4, 1)]).timeout(10);
    set.repels = true;
    pool.create(&set).await?;
    note(&pool, "js", "GangFitUnknown").await?;
    eventually("three are bound", PATIENCE, async || {
        let bound = pool.bound("js").await?;
        ensure!(bound.len() == 3, "{bound:?}");
        Ok(())
    })
    .await?;
    pool.until_phase("js", GangPhase::BackingOff).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Timeout")
        .await?;
    note(&pool, "js", "GangTimeout").await?;
    pool.until_pods("js", 0).await?;
    pool.more_nodes("more", 1).await?;
    pool.until_bound("js", &["w-0", "w-1", "w-2", "w-3"]).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let jobs = pool.scene.api::<Job>().list(&ListParams::default()).await?;
    let failed = jobs
        .iter()
        .filter_map(|job| job.status.as_ref()?.failed)
        .sum::<i32>();
    ensure!(failed == 0, "{failed} failures were counted");
    let metrics = pool.scene.control_plane().metrics().await?;
    for name in ["lockstep_gang_timeouts_total", "lockstep_gang_seconds_count"] {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let value: f64 = line.context("no such metric")?.trim().parse()?;
        ensure!(value >= 1.0, "{name} {value}");
    }
    Ok(())
}

async fn a_higher_priority_starts_first(scene: Scene) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(scene.client());
    let class = json!({"metadata": {"name": "start-high"}, "value": 100, "preemptionPolicy": "Never"});
    classes
        .create(&PostParams::default(), &serde_json::from_value(class)?)
        .await?;
    let pool = Pool::new(scene, 4, 1).await?;
    for backend in ["Gates", "PodGroup"] {
        let [fill, high, low] =
            ["fill", "high", "low"].map(|name| format!("{name}-{}", backend.to_lowercase()));
        pool.create(&Set::new(&fill, backend, [part("w", 3, 3, 1)]))
            .await?;
        pool.until_bound(&fill, &["w-0", "w-1", "w-2"]).await?;
        let set = Set::new(&high, backend, [part("w", 4, 4, 1)]).priority_class("start-high");
        pool.create(&set).await?;
        pool.until_pods(&high, 4).await?;
        // There would be room for the lower one.
        pool.create(&Set::new(&low, backend, [part("w", 1, 1, 1)]))
            .await?;
        pool.until_pods(&low, 1).await?;
        tokio::time::sleep(WHILE).await;
        let bound = pool.bound(&low).await?;
        ensure!(bound.is_empty(), "{backend}: {bound:?} before the higher one");
        pool.delete(&fill).await?;
        pool.until_bound(&high, &["w-0", "w-1", "w-2", "w-3"]).await?;
        let bound = pool.bound(&low).await?;
        ensure!(bound.is_empty(), "{backend}: {bound:?} without room for all");
        pool.delete(&high).await?;
        pool.until_bound(&low, &["w-0"]).await?;
        pool.delete(&low).await?;
        pool.until_pods(&low, 0).await?;
    }
    Ok(())
}

async fn the_chart_allows_what_gangs_take(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let control_plane = pool.scene.control_plane();
    webhooks::permissions::grant(&pool.scene, &["ray.enabled=true"]).await?;
    let file = control_plane.dir().join("gangs.kubeconfig");
    webhooks::permissions::kubeconfig(&pool.scene, &file).await?;
    control_plane.kill().await?;
    control_plane.restore(file).await?;
    for backend in ["Gates", "PodGroup"] {
        let name = format!("js-{}", backend.to_lowercase());
        pool.create(&Set::new(&name, backend, [part("w", 4, 4, 1)]))
            .await?;
        pool.until_phase(&name, GangPhase::Scheduled).await?;
        pool.until_condition(&name, conditions::MIN_AVAILABLE, "Scheduled")
            .await?;
        // Its PodGroup is recreated.
        let pods = pool.pods(&name).await?;
        pool.succeed(&pods["w-0"]).await?;
        pool.delete_pod(&pods["w-1"]).await?;
        until_replaced(&pool, &name, "w-1", &pods["w-1"]).await?;
        pool.delete(&name).await?;
        pool.until_pods(&name, 0).await?;
    }
    Ok(())
}
