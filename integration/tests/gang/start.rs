//! Which pods start, and when.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lockstep_api::{GangPhase, JobSet, JobSetStatus, conditions};
use lockstep_integration::harness::{eventually, hollow};
use serde_json::json;

use crate::ended::until_replaced;
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, node, part};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_gang_without_room_holds_nothing_and_says_what_is_missing),
        case!(a_pod_group_without_room_holds_nothing),
        case!(volcano_1755_the_minimum_of_every_replicated_job_goes_before_extras),
        case!(volcano_1755_the_minimum_goes_before_extras_in_pod_groups),
        case!(volcano_3373_two_gangs_that_need_more_than_half_both_finish),
        case!(two_pod_groups_that_need_more_than_half_both_finish),
        case!(volcano_2462_what_is_not_bound_in_time_is_given_back),
        case!(extras_that_never_start_keep_nobody_from_completing),
        case!(volcano_2944_stages_start_one_after_another_each_with_its_minimum),
        case!(volcano_2130_a_stage_that_waits_for_room_starts_when_the_one_before_it_ends),
        case!(volcano_2226_a_stage_is_ready_with_its_minimum),
        case!(volcano_5805_a_gang_comes_back_with_its_node),
        case!(a_replaced_pod_of_a_scheduled_gang_starts_at_once),
        case!(a_higher_priority_starts_first),
        case!(a_gang_starts_anew_after_a_suspension),
        case!(a_gang_starts_anew_after_a_recreation),
        case!(an_in_place_gang_keeps_its_promise),
        case!(the_chart_allows_what_gangs_take alone),
        case!(a_leader_killed_at_any_moment_leaves_a_gang_that_starts alone),
    ]
}

/// Long enough for a pod to be bound that should not be.
const WHILE: Duration = Duration::from_secs(3);

/// What is said of a set in its events, by reason.
async fn events(pool: &Pool, set: &str) -> Result<Vec<String>> {
    let events = pool.scene.api::<Event>().list(&ListParams::default()).await?;
    let about = events
        .into_iter()
        .filter(|event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(set));
    Ok(about.filter_map(|event| event.reason).collect())
}

async fn until_event(pool: &Pool, set: &str, reason: &str) -> Result<()> {
    eventually(&format!("an event {reason} of {set}"), PATIENCE, async || {
        let events = events(pool, set).await?;
        ensure!(events.iter().any(|seen| seen == reason), "{events:?}");
        Ok(())
    })
    .await
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
    // It can never fit, so it is in nobody's way.
    pool.create(&Set::new("small", "Gates", [part("w", 6, 6, 2)]))
        .await?;
    pool.until_bound("small", &["w-0", "w-1", "w-2", "w-3", "w-4", "w-5"])
        .await?;
    pool.until_condition("small", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    pool.until_phase("small", GangPhase::Scheduled).await?;
    until_event(&pool, "small", "GangScheduled").await?;
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

async fn minimum_before_extras(pool: Pool, backend: &'static str) -> Result<()> {
    let set = Set::new("js", backend, [part("m", 5, 3, 1), part("w", 3, 2, 1)]);
    pool.create(&set).await?;
    let minimum = ["m-0", "m-1", "m-2", "w-0", "w-1"];
    pool.until_bound("js", &minimum).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    pool.until_pods("js", 8).await?;
    let bound = pool.bound("js").await?;
    ensure!(bound == minimum, "{bound:?}");
    hollow_nodes(&pool, "more", 3).await?;
    let all = ["m-0", "m-1", "m-2", "m-3", "m-4", "w-0", "w-1", "w-2"];
    pool.until_bound("js", &all).await
}

/// More nodes of one CPU for the pool.
async fn hollow_nodes(pool: &Pool, name: &str, count: usize) -> Result<()> {
    let namespace = &pool.scene.namespace.name;
    hollow::create_nodes_named(
        &pool.scene.client(),
        &format!("{namespace}-{name}"),
        namespace,
        count,
        1,
    )
    .await
}

async fn volcano_1755_the_minimum_of_every_replicated_job_goes_before_extras(scene: Scene) -> Result<()> {
    minimum_before_extras(Pool::new(scene, 5, 1).await?, "Gates").await
}

async fn volcano_1755_the_minimum_goes_before_extras_in_pod_groups(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    minimum_before_extras(Pool::new(scene, 5, 1).await?, "PodGroup").await
}

async fn both_finish(scene: Scene, backend: &'static str) -> Result<()> {
    let pool = Pool::new(scene, 5, 2).await?;
    for name in ["one", "two"] {
        let set = Set::new(name, backend, [part("w", 6, 6, 1)]).runs(Duration::from_secs(1));
        pool.create(&set.timeout(5)).await?;
    }
    for name in ["one", "two"] {
        pool.until_condition(name, "Completed", "AllJobsCompleted")
            .await?;
    }
    Ok(())
}

async fn volcano_3373_two_gangs_that_need_more_than_half_both_finish(scene: Scene) -> Result<()> {
    both_finish(scene, "Gates").await
}

async fn two_pod_groups_that_need_more_than_half_both_finish(scene: Scene) -> Result<()> {
    both_finish(scene, "PodGroup").await
}

/// Pods that repel each other are more than the fit check understands: one of four finds no place on three nodes.
async fn volcano_2462_what_is_not_bound_in_time_is_given_back(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 3, 4).await?;
    let mut set = Set::new("js", "Gates", [part("w", 4, 4, 1)]).timeout(3);
    set.repels = true;
    pool.create(&set).await?;
    until_event(&pool, "js", "GangFitUnknown").await?;
    eventually("three are bound", PATIENCE, async || {
        let bound = pool.bound("js").await?;
        ensure!(bound.len() == 3, "{bound:?}");
        Ok(())
    })
    .await?;
    pool.until_phase("js", GangPhase::BackingOff).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Timeout")
        .await?;
    until_event(&pool, "js", "GangTimeout").await?;
    pool.until_pods("js", 0).await?;
    hollow_nodes(&pool, "more", 1).await?;
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

async fn extras_that_never_start_keep_nobody_from_completing(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 2, 1).await?;
    pool.create(&Set::new("js", "Gates", [part("w", 4, 2, 1)]))
        .await?;
    pool.until_bound("js", &["w-0", "w-1"]).await?;
    let pods = pool.until_pods("js", 4).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    // What the minimum leaves behind is not to be had by extras.
    let nodes: Api<Node> = Api::all(pool.scene.client());
    let cordon = json!({"spec": {"unschedulable": true}});
    let bound: Vec<_> = pods.values().filter(|pod| node(pod).is_some()).collect();
    for pod in &bound {
        let node = node(pod).context("bound")?;
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(&cordon))
            .await?;
    }
    for pod in bound {
        pool.succeed(pod).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    let jobs = pool.scene.api::<Job>().list(&ListParams::default()).await?;
    let succeeded = jobs
        .iter()
        .filter_map(|job| job.status.as_ref()?.succeeded)
        .sum::<i32>();
    ensure!(succeeded == 2, "{succeeded} pods have succeeded");
    Ok(())
}

fn depends_on(set: Set, second: &str, first: &str, status: &str) -> Set {
    let mut set = set;
    set.depends_on = vec![(second.to_owned(), first.to_owned(), status.to_owned())];
    set
}

async fn volcano_2944_stages_start_one_after_another_each_with_its_minimum(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "Gates", [part("a", 4, 3, 1), part("b", 3, 3, 1)]);
    pool.create(&depends_on(set, "b", "a", "Complete")).await?;
    pool.until_bound("js", &["a-0", "a-1", "a-2", "a-3"]).await?;
    let status = pool.until_phase("js", GangPhase::Scheduled).await?;
    let stages: Vec<_> = status
        .gangs
        .iter()
        .map(|gang| (gang.name.as_str(), gang.min_available))
        .collect();
    ensure!(stages == [("a", 3)], "the other is not waited for: {stages:?}");
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    // The second stage waits for all of the first.
    let pods = pool.pods("js").await?;
    for place in ["a-0", "a-1", "a-2"] {
        pool.succeed(&pods[place]).await?;
    }
    tokio::time::sleep(WHILE).await;
    let waits = pool.pods("js").await?;
    ensure!(
        waits.len() == 4,
        "{:?} before the first stage has ended",
        waits.keys()
    );
    pool.succeed(&pods["a-3"]).await?;
    pool.until_status("js", "the second stage is scheduled", |status| {
        let stage = status.gang("b");
        stage.is_some_and(|gang| gang.phase == GangPhase::Scheduled && gang.min_available == 3)
    })
    .await?;
    let pods = pool.pods("js").await?;
    for place in ["b-0", "b-1", "b-2"] {
        pool.succeed(&pods[place]).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    let status = pool.status("js").await?;
    ensure!(status.gangs.len() == 2, "{:?}", status.gangs);
    Ok(())
}

async fn volcano_2130_a_stage_that_waits_for_room_starts_when_the_one_before_it_ends(
    scene: Scene,
) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "PodGroup", [part("a", 4, 4, 1), part("b", 4, 4, 1)]);
    // Ready is enough, and then there is no room for the second one until the first has ended.
    pool.create(&depends_on(set, "b", "a", "Ready")).await?;
    let first = ["a-0", "a-1", "a-2", "a-3"];
    pool.until_bound("js", &first).await?;
    pool.until_pods("js", 8).await?;
    let short = "needs 4 pods x 1 cpu, 0 fit: 4 short of cpu";
    pool.until_status("js", "the second stage waits", |status| {
        let phase = |name: &str| status.gang(name).map(|gang| gang.phase.clone());
        let message = status.gang("b").and_then(|gang| gang.message.as_deref());
        phase("a") == Some(GangPhase::Scheduled)
            && phase("b") == Some(GangPhase::Waiting)
            && message == Some(short)
    })
    .await?;
    // Part of the first stage ends: not enough for the second.
    let pods = pool.pods("js").await?;
    for place in &first[..3] {
        pool.succeed(&pods[*place]).await?;
    }
    tokio::time::sleep(WHILE).await;
    let bound = pool.bound("js").await?;
    ensure!(bound == first, "part of the second stage is bound: {bound:?}");
    pool.succeed(&pods["a-3"]).await?;
    let all = ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "b-2", "b-3"];
    pool.until_bound("js", &all).await?;
    let pods = pool.pods("js").await?;
    for place in &all[4..] {
        pool.succeed(&pods[*place]).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    Ok(())
}

async fn volcano_2226_a_stage_is_ready_with_its_minimum(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "Gates", [part("a", 4, 2, 1), part("b", 2, 2, 1)]);
    let set = depends_on(set, "b", "a", "Ready");
    // Two of the four are taken, so the extras of the first stage have no place.
    pool.create(&Set::new("other", "Gates", [part("w", 2, 2, 1)]))
        .await?;
    pool.until_bound("other", &["w-0", "w-1"]).await?;
    pool.create(&set).await?;
    pool.until_bound("js", &["a-0", "a-1"]).await?;
    pool.until_pods("js", 6).await?;
    pool.delete("other").await?;
    pool.until_status("js", "two gangs are scheduled", |status| {
        let scheduled = status
            .gangs
            .iter()
            .filter(|gang| gang.phase == GangPhase::Scheduled);
        scheduled.count() == 2
    })
    .await?;
    Ok(())
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
    hollow_nodes(&pool, "repaired", 1).await?;
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
        // There would be room for it.
        pool.create(&Set::new(&low, backend, [part("w", 1, 1, 1)]))
            .await?;
        pool.until_pods(&low, 1).await?;
        tokio::time::sleep(WHILE).await;
        let bound = pool.bound(&low).await?;
        ensure!(bound.is_empty(), "{backend}: {bound:?} before the higher one");
        pool.delete(&fill).await?;
        pool.until_bound(&high, &["w-0", "w-1", "w-2", "w-3"]).await?;
        let bound = pool.bound(&low).await?;
        ensure!(bound.is_empty(), "{backend}: {bound:?} where there is no room");
        pool.delete(&high).await?;
        pool.until_bound(&low, &["w-0"]).await?;
        pool.delete(&low).await?;
        pool.until_pods(&low, 0).await?;
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

/// Whose workers restart in place: what is recreated starts together again, and a pod that is lost is replaced at once.
async fn an_in_place_gang_keeps_its_promise(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let mut set = Set::new("js", "Gates", [part("w", 4, 4, 1)]);
    set.backoff_limit = 2_147_483_647;
    let strategy = json!({"failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}});
    pool.create(&set.with(strategy)).await?;
    let all = ["w-0", "w-1", "w-2", "w-3"];
    pool.until_bound("js", &all).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let nodes: Api<Node> = Api::all(pool.scene.client());
    let lacking = format!("{}-0", pool.scene.namespace.name);
    let cordon = async |unschedulable: bool| {
        let patch = json!({"spec": {"unschedulable": unschedulable}});
        nodes
            .patch(&lacking, &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    cordon(true).await?;
    // As its coordinator asks for it, where no daemon restarts the worker in time.
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
    cordon(false).await?;
    pool.until_bound("js", &all).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    let pods = pool.pods("js").await?;
    pool.delete_pod(&pods["w-1"]).await?;
    until_replaced(&pool, "js", "w-1", &pods["w-1"]).await
}

async fn a_leader_killed_at_any_moment_leaves_a_gang_that_starts(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 2).await?;
    let control_plane = pool.scene.control_plane().clone();
    // Extras of a PodGroup are told apart by the webhook, which dies with the leader.
    for (backend, pods) in [("Gates", 10), ("PodGroup", 8)] {
        for millis in [0, 20, 50, 100, 200, 400] {
            let name = format!("js-{}-{millis}", backend.to_lowercase());
            pool.create(&Set::new(&name, backend, [part("w", pods, 8, 1)]))
                .await?;
            // Not to wait for anything: to hit another moment of the start each time.
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
        // Its PodGroup is made anew.
        let pods = pool.pods(&name).await?;
        pool.succeed(&pods["w-0"]).await?;
        pool.delete_pod(&pods["w-1"]).await?;
        until_replaced(&pool, &name, "w-1", &pods["w-1"]).await?;
        pool.delete(&name).await?;
        pool.until_pods(&name, 0).await?;
    }
    Ok(())
}
