//! Network, coordinator, groups, claims, managedBy: the effect of each field on Jobs and the
//! objects beside them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use lockstep_api::{JobSet, labels};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_network_gives_pods_names),
        case!(without_host_names_there_is_no_service),
        case!(the_coordinator_is_named_on_every_job),
        case!(jobs_are_numbered_within_their_group),
        case!(claims_are_made_mounted_and_deleted_with_the_jobset),
        case!(a_claim_that_is_there_is_used_and_stays),
        case!(a_claim_that_cannot_be_made_is_told_of),
        case!(a_jobset_of_another_controller_is_left_alone),
        case!(metadata_of_the_job_template_is_kept),
    ]
}

async fn the_network_gives_pods_names(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({
            "network": {"subdomain": "training", "publishNotReadyAddresses": false},
            "replicatedJobs": [replicated_job("a", 1)],
        })))
        .await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    let pod = jobs[0].spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    ensure!(pod.and_then(|pod| pod.subdomain.as_deref()) == Some("training"));
    let service = scene.api::<Service>().get("training").await?;
    let spec = service.spec.unwrap_or_default();
    ensure!(spec.cluster_ip.as_deref() == Some("None"));
    ensure!(!spec.publish_not_ready_addresses.unwrap_or(false));
    let selector = spec.selector.unwrap_or_default();
    ensure!(selector == [(labels::JOBSET_NAME.to_owned(), "js".to_owned())].into());
    Ok(())
}

async fn without_host_names_there_is_no_service(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({
            "network": {"enableDNSHostnames": false},
            "replicatedJobs": [replicated_job("a", 1)],
        })))
        .await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    let pod = jobs[0].spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    ensure!(pod.is_some_and(|pod| pod.subdomain.is_none()));
    ensure!(
        scene
            .api::<Service>()
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
    );
    Ok(())
}

async fn the_coordinator_is_named_on_every_job(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({
            "coordinator": {"replicatedJob": "a", "jobIndex": 1, "podIndex": 0},
            "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
        })))
        .await?;
    for job in scene.until_jobs(&["js-a-0", "js-a-1", "js-b-0"], 0).await? {
        ensure!(job.labels()[labels::COORDINATOR] == "js-a-1-0.js");
        ensure!(job.annotations()[labels::COORDINATOR] == "js-a-1-0.js");
        let template = job.spec.unwrap_or_default().template.metadata.unwrap_or_default();
        ensure!(template.labels.unwrap_or_default()[labels::COORDINATOR] == "js-a-1-0.js");
    }
    Ok(())
}

async fn jobs_are_numbered_within_their_group(scene: Scene) -> Result<()> {
    let mut jobs = [
        replicated_job("a", 1),
        replicated_job("b", 1),
        replicated_job("c", 2),
    ];
    jobs[0]["groupName"] = json!("one");
    jobs[1]["groupName"] = json!("two");
    jobs[2]["groupName"] = json!("one");
    scene.create(jobset(json!({"replicatedJobs": jobs}))).await?;
    let jobs = scene
        .until_jobs(&["js-a-0", "js-b-0", "js-c-0", "js-c-1"], 0)
        .await?;
    let seen: Vec<String> = jobs
        .iter()
        .map(|job| {
            let label = |key: &str| job.labels()[key].as_str();
            [
                labels::GROUP_NAME,
                labels::GROUP_REPLICAS,
                labels::JOB_GROUP_INDEX,
            ]
            .map(label)
            .join(" ")
        })
        .collect();
    ensure!(seen == ["one 3 0", "two 1 0", "one 3 1", "one 3 2"], "{seen:?}");
    Ok(())
}

fn claiming(when_deleted: &str) -> Value {
    let mut job = replicated_job("a", 1);
    job["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}]);
    jobset(json!({
        "volumeClaimPolicies": [{
            "templates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
            "retentionPolicy": {"whenDeleted": when_deleted},
        }],
        "replicatedJobs": [job],
    }))
}

async fn claims_are_made_mounted_and_deleted_with_the_jobset(scene: Scene) -> Result<()> {
    scene.create(claiming("Delete")).await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    let pod = jobs[0].spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let volume = pod
        .and_then(|pod| pod.volumes.as_ref()?.first())
        .context("no volume")?;
    let claim = volume.persistent_volume_claim.as_ref().context("no claim")?;
    ensure!((volume.name.as_str(), claim.claim_name.as_str()) == ("data", "data-js"));
    let claims = scene.api::<PersistentVolumeClaim>();
    let claim = claims.get("data-js").await?;
    ensure!(claim.labels()[labels::JOBSET_NAME] == "js");
    ensure!(
        claim
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true))
    );
    scene
        .api::<JobSet>()
        .delete("js", &DeleteParams::background())
        .await?;
    eventually("the claim goes with the jobset", PATIENCE, async || {
        let claim = claims.get_opt("data-js").await?;
        ensure!(claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some()));
        Ok(())
    })
    .await
}

async fn a_claim_that_is_there_is_used_and_stays(scene: Scene) -> Result<()> {
    let claims = scene.api::<PersistentVolumeClaim>();
    let manifest = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-js"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let before = claims
        .create(&PostParams::default(), &serde_json::from_value(manifest)?)
        .await?;
    scene.create(claiming("Retain")).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let after = claims.get("data-js").await?;
    ensure!(after.uid() == before.uid() && after.owner_references().is_empty());
    Ok(())
}

async fn a_claim_that_cannot_be_made_is_told_of(scene: Scene) -> Result<()> {
    let mut manifest = claiming("Delete");
    manifest["spec"]["volumeClaimPolicies"][0]["templates"][0]["spec"]["accessModes"] = json!(["Nonsense"]);
    scene.create(manifest).await?;
    let note = scene.until_event("PVCCreationFailed").await?;
    ensure!(note.contains("data-js") && note.contains("Nonsense"), "{note}");
    ensure!(scene.jobs().await?.is_empty());
    Ok(())
}

async fn a_jobset_of_another_controller_is_left_alone(scene: Scene) -> Result<()> {
    let mut other = jobset(json!({
        "managedBy": "acme.io/other",
        "replicatedJobs": [replicated_job("a", 1)],
    }));
    other["metadata"]["name"] = json!("theirs");
    scene.create(other).await?;
    scene
        .create(jobset(json!({
            "managedBy": "jobset.sigs.k8s.io/jobset-controller",
            "replicatedJobs": [replicated_job("a", 1)],
        })))
        .await?;
    // It was created after the other one, so the controller has seen the other one by now.
    scene.until_jobs(&["js-a-0"], 0).await?;
    ensure!(scene.api::<JobSet>().get("theirs").await?.status.is_none());
    Ok(())
}

async fn metadata_of_the_job_template_is_kept(scene: Scene) -> Result<()> {
    let mut job = replicated_job("a", 1);
    job["template"]["metadata"] = json!({"labels": {"team": "x"}, "annotations": {"note": "y"}});
    job["template"]["spec"]["template"]["metadata"] = json!({"labels": {"pod": "z"}});
    scene.create(jobset(json!({"replicatedJobs": [job]}))).await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    ensure!(jobs[0].labels()["team"] == "x" && jobs[0].annotations()["note"] == "y");
    let template = jobs[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.template.metadata.clone());
    ensure!(template.is_some_and(|meta| meta.labels.unwrap_or_default()["pod"] == "z"));
    Ok(())
}
