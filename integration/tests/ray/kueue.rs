//! What Kueue does to RayJobs and RayClusters, request by request: it holds them by `suspend`,
//! admits them to a flavor, preempts them, and admits them to another.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayClusterState, RayJob, RayJobDeploymentStatus as Phase};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::job::{head_runs, patch, ray_says, submits, until, until_phase};
use crate::ray::{cluster, rayjob};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_is_admitted_taken_back_and_admitted_to_another_flavor),
        case!(a_cluster_is_admitted_taken_back_and_admitted_to_another_flavor),
    ]
}

const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// A pod template as Kueue writes it for a flavor: with the flavor's node selector and toleration,
/// and Kueue's label and annotation.
fn admitted(template: &mut Value, podset: &str, zone: &str) {
    template["metadata"] = json!({
        "labels": {"kueue.x-k8s.io/podset": podset},
        "annotations": {"kueue.x-k8s.io/workload": "raycluster-rc-1a2b3"},
    });
    template["spec"]["nodeSelector"] = json!({"zone": zone});
    template["spec"]["tolerations"] =
        json!([{"key": "spot", "operator": "Equal", "value": zone, "effect": "NoSchedule"}]);
}

/// The spec of a cluster with one worker, as Kueue writes it for a flavor, or as its user wrote it.
fn spec(zone: Option<&str>) -> Value {
    let mut spec = cluster(1, json!({}))["spec"].take();
    if let Some(zone) = zone {
        admitted(&mut spec["headGroupSpec"]["template"], "head", zone);
        admitted(&mut spec["workerGroupSpecs"][0]["template"], "small", zone);
    }
    spec
}

/// Checks that the only pod of a role is of this flavor.
async fn pod_is_of(scene: &Scene, node_type: &str, podset: &str, zone: &str) -> Result<()> {
    let pods = scene.ray_pods(node_type).await?;
    let [pod] = pods.as_slice() else {
        anyhow::bail!("{} pods of {node_type}", pods.len());
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let selected = spec.node_selector.unwrap_or_default().remove("zone");
    let tolerates = spec.tolerations.iter().flatten().any(|toleration| {
        toleration.key.as_deref() == Some("spot") && toleration.value.as_deref() == Some(zone)
    });
    let label = pod.labels().get("kueue.x-k8s.io/podset").map(String::as_str);
    ensure!(
        selected.as_deref() == Some(zone)
            && tolerates
            && label == Some(podset)
            && pod.annotations().contains_key("kueue.x-k8s.io/workload"),
        "{pod:?}"
    );
    Ok(())
}

/// Checks that there is no JobSet, and no pod of Ray that is not being deleted.
async fn nothing_runs(scene: &Scene) -> Result<()> {
    let jobsets = scene.api::<JobSet>().list(&ListParams::default()).await?.items;
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    let live = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let live: Vec<String> = live.map(ResourceExt::name_any).collect();
    ensure!(
        jobsets.is_empty() && live.is_empty(),
        "{} {live:?}",
        jobsets.len()
    );
    Ok(())
}

async fn a_job_is_admitted_taken_back_and_admitted_to_another_flavor(scene: Scene) -> Result<()> {
    // Kueue's webhook changes an object with the label of a queue to this.
    let held = json!({"suspend": true, "shutdownAfterJobFinishes": true, "rayClusterSpec": spec(None)});
    let mut manifest = rayjob(1, held);
    manifest["metadata"]["labels"] = json!({QUEUE: "team"});
    scene.make::<RayJob>(manifest).await?;
    until_phase(&scene, Phase::Suspended).await?;
    nothing_runs(&scene).await?;
    let admit = |zone| json!({"spec": {"suspend": false, "rayClusterSpec": spec(Some(zone))}});

    patch(&scene, admit("east")).await?;
    let first = head_runs(&scene, "s0").await?;
    pod_is_of(&scene, "head", "head", "east").await?;
    scene.ray_pods_run("worker", 1).await?;
    pod_is_of(&scene, "worker", "small", "east").await?;
    submits(&scene).await?;
    until(
        &scene,
        "it is ready, as waitForPodsReady looks for it",
        |status| {
            let cluster = status.ray_cluster_status.as_ref();
            cluster.is_some_and(|cluster| cluster.state == Some(RayClusterState::ready))
        },
    )
    .await?;

    // Preemption is one patch with the former templates.
    patch(&scene, json!({"spec": {"suspend": true, "rayClusterSpec": {
        "headGroupSpec": {"template": {"metadata": null, "spec": {"nodeSelector": null, "tolerations": null}}},
        "workerGroupSpecs": spec(None)["workerGroupSpecs"],
    }}}))
    .await?;
    let seen = until_phase(&scene, Phase::Suspended).await?;
    ensure!(
        seen.job_id.is_empty() && seen.failed == 0 && seen.end_time.is_none(),
        "{seen:?}"
    );
    nothing_runs(&scene).await?;
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none());
    dashboard::with(&first.dashboard_url, |head| head.session = None);

    patch(&scene, admit("west")).await?;
    head_runs(&scene, "s1").await?;
    pod_is_of(&scene, "head", "head", "west").await?;
    let seen = submits(&scene).await?;
    ray_says(&seen, "SUCCEEDED");
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (ended.succeeded, ended.failed, ended.num_retries) == (1, 0, 0),
        "{ended:?}"
    );
    let job = scene.api::<RayJob>().get("rj").await?;
    ensure!(job.labels().contains_key(QUEUE), "the label of the queue is gone");
    Ok(())
}

async fn a_cluster_is_admitted_taken_back_and_admitted_to_another_flavor(scene: Scene) -> Result<()> {
    let mut manifest = cluster(1, json!({"suspend": true}));
    manifest["metadata"]["labels"] = json!({QUEUE: "team"});
    scene.create_cluster(manifest).await?;
    scene.until_state("suspended").await?;
    nothing_runs(&scene).await?;
    let written = |suspend: bool, zone: Option<&str>| {
        let mut spec = spec(zone);
        spec["suspend"] = json!(suspend);
        json!({"spec": spec})
    };

    for zone in ["east", "west"] {
        scene.patch_cluster(written(false, Some(zone))).await?;
        scene.ray_pods_run("head", 1).await?;
        pod_is_of(&scene, "head", "head", zone).await?;
        scene.ray_pods_run("worker", 1).await?;
        pod_is_of(&scene, "worker", "small", zone).await?;
        let status = scene.until_state("ready").await?;
        ensure!(
            !status.is_true(lockstep_api::ray::conditions::CHANGES_PENDING),
            "{status:?}"
        );

        scene.patch_cluster(written(true, None)).await?;
        scene.until_state("suspended").await?;
        eventually("nothing runs", PATIENCE, async || nothing_runs(&scene).await).await?;
    }
    let cluster = scene.api::<RayCluster>().get("rc").await?;
    ensure!(
        cluster.labels().contains_key(QUEUE),
        "the label of the queue is gone"
    );
    Ok(())
}
