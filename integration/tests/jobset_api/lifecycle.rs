//! JobSets from creation to completion, suspension and deletion.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::{JobSet, labels};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_jobset_becomes_jobs_a_service_and_a_status),
        case!(a_jobset_whose_jobs_succeed_is_completed_and_counted_once),
        case!(without_a_failure_policy_a_failed_job_fails_the_jobset_and_ends_the_others),
        case!(suspending_stops_the_jobs_and_resuming_starts_them_from_the_changed_template),
        case!(depends_on_creates_replicated_jobs_in_their_turn),
        case!(what_is_deleted_by_hand_comes_back),
        case!(a_finished_jobset_is_deleted_when_its_time_is_up),
        case!(a_jobset_made_anew_under_the_same_name_gets_its_own_jobs),
    ]
}

async fn a_jobset_becomes_jobs_a_service_and_a_status(scene: Scene) -> Result<()> {
    let js = scene
        .create(jobset(
            json!({"replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)]}),
        ))
        .await?;
    let jobs = scene.until_jobs(&["js-a-0", "js-a-1", "js-b-0"], 0).await?;
    let of_b = &jobs[2];
    for (key, value) in [
        (labels::JOBSET_NAME, "js"),
        (labels::JOBSET_UID, js.uid_str()),
        (labels::REPLICATED_JOB_NAME, "b"),
        (labels::REPLICATED_JOB_REPLICAS, "1"),
        (labels::GLOBAL_REPLICAS, "3"),
        (labels::JOB_INDEX, "0"),
        (labels::JOB_GLOBAL_INDEX, "2"),
        (labels::GROUP_NAME, "default"),
        (labels::GROUP_REPLICAS, "3"),
        (labels::JOB_GROUP_INDEX, "2"),
        (labels::RESTART_ATTEMPT, "0"),
        (
            labels::JOB_KEY,
            &lockstep_api::naming::job_key(&scene.namespace.name, "js-b-0"),
        ),
    ] {
        ensure!(
            of_b.labels().get(key).is_some_and(|label| label == value),
            "label {key}: {:?}",
            of_b.labels()
        );
        ensure!(
            of_b.annotations().get(key).is_some_and(|note| note == value),
            "annotation {key}"
        );
    }
    let pods = eventually("three pods", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        ensure!(pods.len() == 3, "{} pods", pods.len());
        Ok(pods)
    })
    .await?;
    for pod in pods {
        ensure!(pod.labels()[labels::JOBSET_UID] == js.uid_str());
        ensure!(
            pod.spec
                .is_some_and(|spec| spec.subdomain.as_deref() == Some("js"))
        );
    }
    let service = scene.api::<Service>().get("js").await?;
    let spec = service.spec.unwrap_or_default();
    ensure!(spec.cluster_ip.as_deref() == Some("None") && spec.publish_not_ready_addresses == Some(true));

    scene.all_pods_become("Running").await?;
    let status = scene
        .until_status("all are ready", |status| {
            let ready = |name: &str| {
                status
                    .replicated_job(name)
                    .map(|counts| (counts.ready, counts.active))
            };
            (ready("a"), ready("b")) == (Some((2, 2)), Some((1, 1)))
        })
        .await?;
    let names: Vec<_> = status
        .replicated_jobs_status
        .iter()
        .map(|counts| counts.name.as_str())
        .collect();
    ensure!(names == ["b", "a"], "{names:?}");
    Ok(())
}

async fn a_jobset_whose_jobs_succeed_is_completed_and_counted_once(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 2)]})))
        .await?;
    scene.until_jobs(&["js-a-0", "js-a-1"], 0).await?;
    scene.all_pods_become("Succeeded").await?;
    let status = scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    ensure!(
        status
            .terminal_state
            .is_some_and(|state| state.as_str() == "Completed")
    );
    ensure!(scene.until_event("AllJobsCompleted").await? == "jobset completed successfully");
    let line = format!(
        "jobset_completed_total{{jobset_name=\"js\",namespace=\"{}\"}} 1\n",
        scene.namespace.name
    );
    let metrics = scene.control_plane().metrics().await?;
    ensure!(metrics.contains(&line), "{metrics}");
    Ok(())
}

async fn without_a_failure_policy_a_failed_job_fails_the_jobset_and_ends_the_others(
    scene: Scene,
) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 2)]})))
        .await?;
    scene.until_jobs(&["js-a-0", "js-a-1"], 0).await?;
    scene.pods_become("js-a-1", "Failed").await?;
    let status = scene.until_condition("Failed", "True", "FailedJobs").await?;
    let message = &status
        .condition("Failed")
        .map(|condition| condition.message.clone())
        .unwrap_or_default();
    ensure!(
        message == "jobset failed due to one or more job failures (first failed job: js-a-1)",
        "{message}"
    );
    ensure!(scene.until_event("FailedJobs").await? == *message);
    scene.until_jobs(&["js-a-1"], 0).await?;
    let line = format!(
        "jobset_failed_total{{jobset_name=\"js\",namespace=\"{}\"}} 1\n",
        scene.namespace.name
    );
    ensure!(scene.control_plane().metrics().await?.contains(&line));
    Ok(())
}

async fn suspending_stops_the_jobs_and_resuming_starts_them_from_the_changed_template(
    scene: Scene,
) -> Result<()> {
    let spec = json!({"suspend": true, "replicatedJobs": [replicated_job("a", 1)]});
    scene.create(jobset(spec)).await?;
    let suspended = |job: &Job| job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    ensure!(scene.until_jobs(&["js-a-0"], 0).await?.iter().all(suspended));
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;

    // As Kueue does when it admits a workload.
    let mut admitted = replicated_job("a", 1);
    admitted["template"]["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": "z"});
    scene
        .patch(json!({"spec": {"suspend": false, "replicatedJobs": [admitted]}}))
        .await?;
    scene.until_condition("Suspended", "False", "ResumeJobs").await?;
    scene.pods_become("js-a-0", "Running").await?;
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    let selector = pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.node_selector.clone())
        .unwrap_or_default();
    ensure!(
        selector.get("zone").is_some_and(|zone| zone == "z"),
        "{selector:?}"
    );

    // The start time of a Job that has run must be cleared before its template may change.
    scene.patch(json!({"spec": {"suspend": true}})).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    eventually("the job is suspended", PATIENCE, async || {
        ensure!(scene.jobs().await?.iter().all(suspended));
        Ok(())
    })
    .await?;
    scene.until_no_pods().await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    scene.until_condition("Suspended", "False", "ResumeJobs").await?;
    scene.pods_become("js-a-0", "Running").await?;
    Ok(())
}

async fn depends_on_creates_replicated_jobs_in_their_turn(scene: Scene) -> Result<()> {
    let mut second = replicated_job("b", 1);
    second["dependsOn"] = json!([{"name": "a", "status": "Ready"}]);
    scene
        .create(jobset(
            json!({"replicatedJobs": [replicated_job("a", 1), second]}),
        ))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene
        .until_status("a status", |status| !status.replicated_jobs_status.is_empty())
        .await?;
    ensure!(scene.jobs().await?.len() == 1);
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    Ok(())
}

async fn what_is_deleted_by_hand_comes_back(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let before = scene.until_jobs(&["js-a-0"], 0).await?[0].uid();
    scene
        .api::<Job>()
        .delete("js-a-0", &DeleteParams::background())
        .await?;
    scene
        .api::<Service>()
        .delete("js", &DeleteParams::default())
        .await?;
    eventually("job and service are recreated", PATIENCE, async || {
        ensure!(scene.api::<Job>().get("js-a-0").await?.uid() != before);
        scene.api::<Service>().get("js").await?;
        Ok(())
    })
    .await
}

async fn a_finished_jobset_is_deleted_when_its_time_is_up(scene: Scene) -> Result<()> {
    let spec = json!({"ttlSecondsAfterFinished": 1, "replicatedJobs": [replicated_job("a", 1)]});
    scene.create(jobset(spec)).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    eventually("the jobset is gone", PATIENCE, async || {
        ensure!(scene.api::<JobSet>().get_opt("js").await?.is_none());
        ensure!(scene.jobs().await?.is_empty());
        Ok(())
    })
    .await
}

async fn a_jobset_made_anew_under_the_same_name_gets_its_own_jobs(scene: Scene) -> Result<()> {
    let manifest = jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}));
    scene.create(manifest.clone()).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene
        .api::<JobSet>()
        .delete("js", &DeleteParams::background())
        .await?;
    let second = eventually("the second can be created", PATIENCE, async || {
        scene.create(manifest.clone()).await
    })
    .await?;
    eventually("the job belongs to the second", PATIENCE, async || {
        let job = scene.api::<Job>().get("js-a-0").await?;
        ensure!(job.labels()[labels::JOBSET_UID] == second.uid_str());
        Ok(())
    })
    .await
}
