//! Failures around RayClusters and RayJobs, and how they are reported to users.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase, conditions};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::job::{create, head_runs, ray_is, ray_says, running, status, submits, until, until_phase};
use crate::ray::{cluster, rayjob};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_dashboard_without_versions_gets_its_job),
        case!(a_dashboard_that_does_not_take_a_job_is_named),
        case!(a_submitter_whose_pod_does_not_go_does_not_hold_up_the_next_one_for_ever),
        case!(leftovers_of_a_former_cluster_are_waited_for),
        case!(a_service_of_the_name_that_is_somebody_elses_is_named),
        case!(what_a_quota_refuses_is_told),
        case!(a_job_says_what_its_cluster_is_refused),
        case!(what_a_quota_refuses_in_part_is_told),
        case!(what_keeps_the_head_from_being_ready_is_shown),
        case!(a_job_that_kuberay_has_begun_is_left_to_it alone),
    ]
}

/// Removes the finalizers.
async fn let_go<K: crate::ray::Kind>(scene: &Scene, name: &str) -> Result<()> {
    scene
        .merge::<K>(name, json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(())
}

async fn a_dashboard_without_versions_gets_its_job(scene: Scene) -> Result<()> {
    create(&scene, rayjob(0, json!({"submissionMode": "HTTPMode"}))).await?;
    let seen = head_runs(&scene, dashboard::NO_SESSION).await?;
    until(&scene, "Ray has it", |status| status.job_status == "PENDING").await?;
    ray_says(&seen, "SUCCEEDED");
    let seen = until_phase(&scene, Phase::Complete).await?;
    ensure!(seen.session.is_empty() && seen.failed == 0, "{seen:?}");
    Ok(())
}

async fn a_dashboard_that_does_not_take_a_job_is_named(scene: Scene) -> Result<()> {
    create(&scene, rayjob(0, json!({"submissionMode": "HTTPMode"}))).await?;
    scene.ray_pods_run("head", 1).await?;
    let seen = until(&scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    let refuses = |answer| dashboard::with(&seen.dashboard_url, |head| head.refuses = answer);
    refuses(Some((500, "no room")));
    ray_is(&seen, "s0");
    let told = until(&scene, "it is said", |status| {
        status.message.contains("has not accepted the job: 500") && status.message.contains("no room")
    })
    .await?;
    ensure!(
        told.job_deployment_status == Some(Phase::Initializing) && told.unreachable_since.is_some(),
        "{told:?}"
    );
    refuses(None);
    let seen = until(&scene, "Ray has it", |status| status.job_status == "PENDING").await?;
    ensure!(seen.unreachable_since.is_none(), "{seen:?}");
    Ok(())
}

async fn a_submitter_whose_pod_does_not_go_does_not_hold_up_the_next_one_for_ever(
    scene: Scene,
) -> Result<()> {
    let first = running(&scene, json!({"backoffLimit": 1})).await?;
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=rj");
    let pods = eventually("the submitter's pod", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&of_job).await?.items;
        ensure!(!pods.is_empty(), "none yet");
        Ok(pods)
    })
    .await?;
    let pod = pods[0].name_any();
    let stays = json!({"metadata": {"finalizers": ["lockstep.dev/test-of-a-lost-node"]}});
    scene.merge::<Pod>(&pod, stays).await?;
    ray_says(&first, "FAILED");
    until_phase(&scene, Phase::Retrying).await?;
    ray_is(&first, "s1");
    scene.until_event_of("RayJob", "DeletedRayJobSubmitter").await?;
    // The pod may run until it ends.
    let seen = status(&scene).await?;
    ensure!(seen.job_deployment_status == Some(Phase::Retrying), "{seen:?}");
    eventually("the wait has an end", PATIENCE * 2, async || {
        let seen = status(&scene).await?;
        ensure!(seen.job_deployment_status == Some(Phase::Running), "{seen:?}");
        Ok(())
    })
    .await?;
    let second = submits(&scene).await?;
    ensure!(second.job_id != first.job_id, "{second:?}");
    scene
        .until_event_of("RayJob", "FailedToDeleteRayJobSubmitter")
        .await?;
    scene.until_event_of("RayJob", "CreatedRayJobSubmitter").await?;
    ensure!(
        scene.api::<Pod>().get_opt(&pod).await?.is_some(),
        "the pod has gone"
    );
    let_go::<Pod>(&scene, &pod).await
}

async fn leftovers_of_a_former_cluster_are_waited_for(scene: Scene) -> Result<()> {
    scene.create_cluster(cluster(0, json!({}))).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.until_state("ready").await?;
    let stays = json!({"metadata": {"finalizers": ["lockstep.dev/test-of-a-slow-end"]}});
    let former = scene.merge::<JobSet>("rc", stays).await?;
    let clusters = scene.api::<RayCluster>();
    clusters.delete("rc", &DeleteParams::background()).await?;
    eventually("it is gone", PATIENCE, async || {
        ensure!(clusters.get_opt("rc").await?.is_none());
        Ok(())
    })
    .await?;
    scene.create_cluster(cluster(0, json!({}))).await?;
    let status = scene
        .until_cluster("it was looked at", |status| !status.conditions.is_empty())
        .await?;
    ensure!(status.state.is_none() && status.reason.is_empty(), "{status:?}");
    let_go::<JobSet>(&scene, "rc").await?;
    eventually("another JobSet", PATIENCE, async || {
        ensure!(scene.api::<JobSet>().get("rc").await?.uid() != former.uid());
        Ok(())
    })
    .await?;
    scene.ray_pods_run("head", 1).await?;
    scene.until_state("ready").await?;
    Ok(())
}

async fn a_service_of_the_name_that_is_somebody_elses_is_named(scene: Scene) -> Result<()> {
    // It has no label by which the control plane could see it.
    let service = json!({"metadata": {"name": "rc-head-svc"}, "spec": {"ports": [{"port": 80}]}});
    scene
        .api::<Service>()
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    scene.create_cluster(cluster(0, json!({}))).await?;
    let status = scene.until_state("failed").await?;
    let expected = "Service rc-head-svc belongs to another owner";
    ensure!(status.reason == expected, "{}", status.reason);
    let note = scene
        .until_event_of("RayCluster", conditions::REPLICA_FAILURE)
        .await?;
    ensure!(note == expected, "{note}");
    ensure!(scene.api::<JobSet>().get_opt("rc").await?.is_none());
    Ok(())
}

/// Sets a quota that allows none of these in the namespace.
async fn forbid(scene: &Scene, resources: &[&str]) -> Result<()> {
    let hard: Value = resources.iter().map(|resource| (*resource, "0")).collect();
    let quotas = scene.api::<ResourceQuota>();
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": hard}});
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    eventually("the quota is in force", PATIENCE, async || {
        let status = quotas.get("none").await?.status.unwrap_or_default();
        ensure!(
            status.used.is_some_and(|used| used.len() == resources.len()),
            "not yet"
        );
        Ok(())
    })
    .await
}

async fn what_a_quota_refuses_is_told(scene: Scene) -> Result<()> {
    forbid(&scene, &["services", "pods"]).await?;
    scene
        .until_quota_refuses::<Service>(
            json!({"metadata": {"name": "more"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await?;
    scene.create_cluster(cluster(0, json!({}))).await?;
    let note = scene
        .until_event_of("RayCluster", "FailedToCreateService")
        .await?;
    ensure!(
        note.contains("Service rc-head-svc cannot be created") && note.contains("exceeded quota: none"),
        "{note}"
    );
    scene
        .until_cluster("what is refused is shown", |status| {
            let failure = status.condition(conditions::REPLICA_FAILURE);
            failure.is_some_and(|failure| failure.reason == "FailedCreateHeadPod")
                && status.is_true(conditions::REPLICA_FAILURE)
                && status.reason.contains("exceeded quota: none")
        })
        .await?;
    // The Service is created, and the pods are not.
    let more = json!({"spec": {"hard": {"services": null, "pods": "0"}}});
    let quotas = scene.api::<ResourceQuota>();
    quotas
        .patch("none", &PatchParams::default(), &Patch::Merge(more))
        .await?;
    let status = scene
        .until_cluster("that there are no pods is shown", |status| {
            status.is_true(conditions::REPLICA_FAILURE) && !status.reason.contains("exceeded quota")
        })
        .await?;
    let failure = status.condition(conditions::REPLICA_FAILURE).cloned();
    ensure!(
        failure.is_some_and(|failure| failure.reason == "FailedCreateHeadPod"),
        "{status:?}"
    );
    quotas.delete("none", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_job_says_what_its_cluster_is_refused(scene: Scene) -> Result<()> {
    forbid(&scene, &["services"]).await?;
    scene
        .until_quota_refuses::<Service>(
            json!({"metadata": {"name": "more"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await?;
    create(&scene, rayjob(0, json!({}))).await?;
    let refused = |said: &str| {
        said.starts_with("waiting until RayCluster ")
            && said.contains(" cannot be created: ")
            && said.contains("exceeded quota: none")
    };
    until(&scene, "what is refused is shown", |status| {
        refused(&status.message) && status.job_deployment_status == Some(Phase::Initializing)
    })
    .await?;
    let note = scene
        .until_event_of("RayJob", conditions::REPLICA_FAILURE)
        .await?;
    ensure!(refused(&note), "{note}");
    let quotas = scene.api::<ResourceQuota>();
    quotas.delete("none", &DeleteParams::default()).await?;
    until(&scene, "that is over", |status| status.message.is_empty()).await?;
    Ok(())
}

async fn what_a_quota_refuses_in_part_is_told(scene: Scene) -> Result<()> {
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}});
    let quotas = scene.api::<ResourceQuota>();
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    eventually("the quota is in force", PATIENCE, async || {
        let status = quotas.get("few").await?.status.unwrap_or_default();
        ensure!(status.used.is_some(), "not yet");
        Ok(())
    })
    .await?;
    scene.create_cluster(cluster(2, json!({}))).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.ray_pods_run("worker", 1).await?;
    let seen = eventually("what is missing is shown", PATIENCE * 2, async || {
        let seen = scene.cluster_status().await?;
        ensure!(seen.is_true(conditions::REPLICA_FAILURE), "{seen:?}");
        Ok(seen)
    })
    .await?;
    let failure = seen.condition(conditions::REPLICA_FAILURE).cloned();
    let expected = "Job rc-small-0 has 1 of its 2 pods: see its events";
    ensure!(
        failure
            .is_some_and(|failure| failure.reason == "FailedCreateWorkerPod" && failure.message == expected),
        "{seen:?}"
    );
    let note = scene
        .until_event_of("RayCluster", conditions::REPLICA_FAILURE)
        .await?;
    ensure!(note == expected, "{note}");
    // The limit goes, and what was said of it.
    quotas.delete("few", &DeleteParams::default()).await?;
    scene.scale(1).await?;
    scene
        .until_cluster("that is over", |status| {
            status.condition(conditions::REPLICA_FAILURE).is_none()
        })
        .await?;
    Ok(())
}

async fn what_keeps_the_head_from_being_ready_is_shown(scene: Scene) -> Result<()> {
    scene.create_cluster(cluster(0, json!({}))).await?;
    let reason = async |reason: &str| {
        let what = format!("the head's pod: {reason}");
        let status = scene.until_cluster(&what, |status| {
            let condition = status.condition(conditions::HEAD_POD_READY);
            condition.is_some_and(|condition| condition.reason == reason)
        });
        let status = status.await?;
        let condition = status.condition(conditions::HEAD_POD_READY).cloned();
        anyhow::Ok(condition.map_or_else(String::new, |condition| condition.message))
    };
    scene.until_jobs(&["rc-head-0"], 0).await?;
    reason("Unknown").await?;
    let waits = json!({"status": {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [{
            "name": "ray", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}},
        }],
    }});
    scene.ray_pods_show("head", 1, &waits).await?;
    let message = reason("ErrImagePull").await?;
    ensure!(message == "ray: no such image", "{message}");
    scene.ray_pods_run("head", 1).await?;
    reason("HeadPodRunningAndReady").await?;
    Ok(())
}

/// The result is the same with and without a running KubeRay.
async fn a_job_that_kuberay_has_begun_is_left_to_it(scene: Scene) -> Result<()> {
    scene.control_plane().kill().await?;
    create(&scene, rayjob(0, json!({}))).await?;
    let begun = json!({"status": {"jobDeploymentStatus": "Running", "jobId": "rj-x7k2p", "rayClusterName": "rj-x7k2p"}});
    let jobs = scene.api::<RayJob>();
    jobs.patch_status("rj", &PatchParams::default(), &Patch::Merge(begun))
        .await?;
    scene.control_plane().start().await?;
    let note = scene.until_event_of("RayJob", "ManagedByAnother").await?;
    ensure!(note.contains("KubeRay's controller has begun this job"), "{note}");
    let seen = status(&scene).await?;
    ensure!(
        seen.job_deployment_status == Some(Phase::Running) && seen.failed == 0,
        "{seen:?}"
    );
    let made = scene.api::<RayCluster>().list(&ListParams::default()).await?;
    ensure!(made.items.is_empty() && scene.api::<Job>().get_opt("rj").await?.is_none());
    Ok(())
}
