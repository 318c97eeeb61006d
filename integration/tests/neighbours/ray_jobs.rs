//! Kueue admits RayClusters and RayJobs. Ray itself is a stub.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::queue::{QUEUE, QUEUE_NAME, Queue, end, pods, until_running};
use crate::ray::{cluster, rayjob};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_second_raycluster_waits_until_the_first_is_gone),
        case!(a_rayjob_is_finished_only_when_its_submitter_has_ended),
    ]
}

/// Puts an object into the queue, with a request of one CPU in each pod of its cluster.
fn queued(mut manifest: Value, name: &str, cluster: &str) -> Value {
    manifest["metadata"] = json!({"name": name, "labels": {QUEUE_NAME: QUEUE}});
    let groups = ["/headGroupSpec", "/workerGroupSpecs/0"];
    for group in groups {
        let container = manifest.pointer_mut(&format!("{cluster}{group}/template/spec/containers/0"));
        if let Some(container) = container {
            container["resources"] = json!({"requests": {"cpu": "1"}});
        }
    }
    manifest
}

async fn the_second_raycluster_waits_until_the_first_is_gone(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    let scene = &queue.scene;
    scene
        .create_cluster(queued(cluster(1, json!({})), "rc", "/spec"))
        .await?;
    until_running(scene, "ray.io/cluster=rc", 2).await?;
    scene.until_state("ready").await?;
    scene
        .create_cluster(queued(cluster(1, json!({})), "second", "/spec"))
        .await?;
    queue.until_workload("second", "QuotaReserved", "False").await?;
    ensure!(pods(scene, "ray.io/cluster=second").await?.is_empty());
    scene
        .api::<RayCluster>()
        .delete("rc", &DeleteParams::background())
        .await?;
    until_running(scene, "ray.io/cluster=second", 2).await.map(drop)
}

async fn until(scene: &Scene, what: &str, expected: impl Fn(&RayJobStatus) -> bool) -> Result<RayJobStatus> {
    eventually(what, PATIENCE, async || {
        let job = scene.api::<RayJob>().get("rj").await?;
        let status = job.status.context("no status yet")?;
        ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
        Ok(status)
    })
    .await
}

async fn a_rayjob_is_finished_only_when_its_submitter_has_ended(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 4, json!({})).await?;
    let scene = &queue.scene;
    let manifest = rayjob(1, json!({"shutdownAfterJobFinishes": true}));
    scene
        .make::<RayJob>(queued(manifest, "rj", "/spec/rayClusterSpec"))
        .await?;
    for pod in until_running(scene, "ray.io/node-type", 2).await? {
        // The kubelets play without addresses.
        let addressed = json!({"status": {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}});
        let api = scene.api::<Pod>();
        api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(addressed))
            .await?;
    }
    let known = until(scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    dashboard::with(&known.dashboard_url, |head| head.session = Some("s0".to_owned()));
    let submitters = until_running(scene, "batch.kubernetes.io/job-name=rj", 1).await?;
    let says = |status: &RayJobStatus, says: &str| {
        dashboard::with(&status.dashboard_url, |head| {
            head.jobs.insert(status.job_id.clone(), says.to_owned());
        });
    };
    let seen = until(scene, "it runs", |status| {
        status.job_deployment_status == Some(Phase::Running)
    })
    .await?;
    eventually("the submitter's Job counts its pod", PATIENCE, async || {
        let submitter = scene.api::<Job>().get("rj").await?;
        ensure!(
            submitter.status.is_some_and(|status| status.ready == Some(1)),
            "not yet"
        );
        Ok(())
    })
    .await?;
    says(&seen, "SUCCEEDED");
    // The submitter still writes the driver's last lines.
    until(scene, "Ray has ended it", |status| {
        status.job_status == "SUCCEEDED" && status.job_deployment_status == Some(Phase::Running)
    })
    .await?;
    let submitter = scene.api::<Job>().get("rj").await?;
    ensure!(
        submitter.spec.is_some_and(|spec| spec.suspend != Some(true)),
        "the submitter is suspended"
    );
    let finished = queue.condition("rj", "Finished").await?;
    ensure!(finished.is_none(), "Kueue takes it for finished: {finished:?}");
    for pod in &submitters {
        end(scene, pod, "Succeeded").await?;
    }
    until(scene, "it is complete", |status| {
        status.job_deployment_status == Some(Phase::Complete)
    })
    .await?;
    let finished = queue.until_workload("rj", "Finished", "True").await?;
    ensure!(finished["reason"] == "Succeeded", "{finished}");
    Ok(())
}
