//! RayJobs with KubeRay's definition, which drops our fields of the status.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus, keys};
use lockstep_api::{JobSet, annotations};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::job::{create, head_runs, patch, ray_is, ray_says, status, until, until_phase};
use crate::ray::rayjob;
use crate::scene::{PATIENCE, Scene};

const NAME: &str = "rayjobs.ray.io";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_is_tried_again_once_by_kuberays_definition alone),
        case!(the_annotation_goes_with_kuberays_definition alone),
    ]
}

async fn a_job_is_tried_again_once_by_kuberays_definition(scene: Scene) -> Result<()> {
    let ours = definition(scene.client()).get(NAME).await?;
    replace(&scene, kuberays(ours.clone())).await?;
    let result = it_is_tried_again_once(&scene).await;
    replace(&scene, ours).await?;
    result
}

async fn it_is_tried_again_once(scene: &Scene) -> Result<()> {
    // When the control plane starts it does not replace the definition, which has more fields than
    // its own.
    again(scene).await?;
    create(scene, rayjob(0, json!({"backoffLimit": 1}))).await?;
    let first = head_runs(scene, "s0").await?;
    submits(scene, "s0").await?;
    ensure!(status(scene).await?.session.is_empty(), "nothing is dropped");
    again(scene).await?;
    ray_says(&first, "FAILED");
    let second = until_phase(scene, Phase::Retrying).await?;
    ensure!(second.failed == 1 && second.job_id != first.job_id, "{second:?}");
    again(scene).await?;
    eventually("a restart in place is asked for", PATIENCE, async || {
        let jobset = scene.api::<JobSet>().get(&first.ray_cluster_name).await?;
        ensure!(jobset.annotation(annotations::RESTART_REQUEST) == Some(second.job_id.as_str()));
        let cluster = scene.api::<RayCluster>().get(&first.ray_cluster_name).await?;
        ensure!(
            cluster.annotation(keys::JOB_STATUS).is_none() && jobset.annotation(keys::JOB_STATUS).is_none()
        );
        Ok(())
    })
    .await?;
    ray_is(&second, "s1");
    submits(scene, "s1").await?;
    // A merge patch that removes the annotations, as a replaced manifest does.
    patch(scene, json!({"metadata": {"annotations": null}})).await?;
    ray_says(&second, "SUCCEEDED");
    let ended = until_phase(scene, Phase::Complete).await?;
    ensure!(
        (ended.succeeded, ended.failed, ended.job_status.as_str()) == (1, 1, "SUCCEEDED"),
        "{ended:?}"
    );
    let clusters = scene.api::<RayCluster>().list(&ListParams::default()).await?;
    ensure!(clusters.items.len() == 1, "{}", clusters.items.len());
    let memory = scene.api::<RayJob>().get("rj").await?;
    let memory = memory.annotation(keys::JOB_STATUS).context("no annotation")?;
    ensure!(
        memory.contains("\"numRetries\":1") && !memory.contains("dashboardURL"),
        "{memory}"
    );
    Ok(())
}

async fn the_annotation_goes_with_kuberays_definition(scene: Scene) -> Result<()> {
    let ours = definition(scene.client()).get(NAME).await?;
    replace(&scene, kuberays(ours.clone())).await?;
    let result = it_has_an_annotation(&scene).await;
    replace(&scene, ours).await?;
    ray_says(&result?, "SUCCEEDED");
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (ended.session.as_str(), ended.succeeded, ended.failed) == ("s0", 1, 0),
        "{ended:?}"
    );
    eventually("the annotation is gone", PATIENCE, async || {
        let job = scene.api::<RayJob>().get("rj").await?;
        ensure!(job.annotation(keys::JOB_STATUS).is_none(), "it is there");
        Ok(())
    })
    .await
}

async fn it_has_an_annotation(scene: &Scene) -> Result<RayJobStatus> {
    again(scene).await?;
    create(scene, rayjob(0, json!({}))).await?;
    head_runs(scene, "s0").await?;
    let seen = submits(scene, "s0").await?;
    let job = scene.api::<RayJob>().get("rj").await?;
    job.annotation(keys::JOB_STATUS).context("no annotation")?;
    Ok(seen)
}

async fn again(scene: &Scene) -> Result<()> {
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    scene.control_plane().until_ready().await
}

/// Plays the submitter: waits until it exists for the current attempt and this session.
async fn submits(scene: &Scene, session: &str) -> Result<RayJobStatus> {
    let seen = eventually("the submitter is there", PATIENCE, async || {
        let seen = status(scene).await?;
        ensure!(seen.job_deployment_status == Some(Phase::Running), "{seen:?}");
        let job = scene.api::<Job>().get("rj").await?;
        ensure!(
            job.annotations().get(keys::JOB_ID) == Some(&seen.job_id),
            "another's"
        );
        let pod = job.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
        let env: Vec<_> = pod.containers[0].env.iter().flatten().collect();
        let of = |name: &str| env.iter().find(|variable| variable.name == name);
        let found = of("RAYJOB_SESSION").and_then(|variable| variable.value.as_deref());
        ensure!(found == Some(session), "{found:?}");
        Ok(seen)
    })
    .await?;
    ray_says(&seen, "RUNNING");
    until(scene, "Ray runs the job", |status| status.job_status == "RUNNING").await
}

fn definition(client: Client) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    Api::all_with(client, &resource)
}

/// Our definition with the status of KubeRay's.
fn kuberays(mut definition: DynamicObject) -> DynamicObject {
    let of = |kind: &str, names: &[&str]| -> Vec<(String, Value)> {
        let one = |name: &&str| ((*name).to_owned(), json!({"type": kind}));
        names.iter().map(one).collect()
    };
    let texts = of(
        "string",
        &[
            "dashboardURL",
            "endTime",
            "jobDeploymentStatus",
            "jobId",
            "jobStatus",
            "message",
            "rayClusterName",
            "reason",
            "startTime",
        ],
    );
    let numbers = of("integer", &["failed", "observedGeneration", "succeeded"]);
    let mut properties: serde_json::Map<_, _> = texts.into_iter().chain(numbers).collect();
    for name in ["rayClusterStatus", "rayJobInfo"] {
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        properties.insert(name.to_owned(), any);
    }
    let schema = &mut definition.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["status"] = json!({"type": "object", "properties": properties});
    definition.metadata.annotations = None;
    definition
}

/// Replaces the installed definition, and waits until the API server applies the new one.
async fn replace(scene: &Scene, mut wanted: DynamicObject) -> Result<()> {
    let definitions = definition(scene.client());
    wanted.metadata.managed_fields = None;
    let status = &wanted.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let keeps = status["x-kubernetes-preserve-unknown-fields"] == true;
    eventually("it is replaced", PATIENCE, async || {
        // The API server also writes the status of definitions.
        wanted.metadata.resource_version = definitions.get(NAME).await?.resource_version();
        Ok(definitions.replace(NAME, &PostParams::default(), &wanted).await?)
    })
    .await?;
    // The control plane does not touch this object.
    let mut probe = rayjob(0, json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    probe["metadata"]["name"] = json!(if keeps { "keeps" } else { "drops" });
    let probe = scene.make::<RayJob>(probe).await?;
    eventually("the API server applies it", PATIENCE, async || {
        let jobs = scene.api::<RayJob>();
        let mut probe = jobs.get(&probe.name_any()).await?;
        probe.status = Some(RayJobStatus {
            session: "s".to_owned(),
            ..RayJobStatus::default()
        });
        let kept = jobs
            .replace_status(&probe.name_any(), &PostParams::default(), &probe)
            .await?;
        let session = kept.status.unwrap_or_default().session;
        ensure!(session.is_empty() != keeps, "{session:?}");
        Ok(())
    })
    .await
}
