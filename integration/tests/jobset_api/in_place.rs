//! JobSets that restart in place, as far as an API server can show it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::{annotations, labels};
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(jobs_get_what_restarting_in_place_needs_and_pods_their_mark),
        case!(pods_say_what_is_started_ahead_as_of_the_creation_of_their_job),
        case!(a_group_that_cannot_be_supervised_says_why),
        case!(a_recreation_asked_for_in_the_status_is_carried_out),
    ]
}

fn in_place() -> Value {
    let mut job = replicated_job("a", 1);
    if let Some(spec) = job["template"]["spec"].as_object_mut() {
        spec.remove("backoffLimit");
    }
    jobset(
        json!({"failurePolicy": {"maxRestarts": 1, "restartStrategy": "InPlaceRestart"}, "replicatedJobs": [job]}),
    )
}

async fn jobs_get_what_restarting_in_place_needs_and_pods_their_mark(scene: Scene) -> Result<()> {
    scene.create(in_place()).await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    let spec = jobs[0].spec.clone().unwrap_or_default();
    ensure!(spec.backoff_limit == Some(i32::MAX), "{:?}", spec.backoff_limit);
    ensure!(
        spec.pod_replacement_policy.as_deref() == Some("Failed"),
        "{:?}",
        spec.pod_replacement_policy
    );
    let marks = spec
        .template
        .metadata
        .and_then(|meta| meta.annotations)
        .unwrap_or_default();
    ensure!(
        marks
            .get(annotations::IN_PLACE)
            .is_some_and(|mark| mark == "supervised"),
        "{marks:?}"
    );
    ensure!(
        marks
            .get(annotations::SUPERVISE)
            .is_some_and(|mark| mark == "worker"),
        "{marks:?}"
    );
    Ok(())
}

async fn pods_say_what_is_started_ahead_as_of_the_creation_of_their_job(scene: Scene) -> Result<()> {
    let mut manifest = in_place();
    manifest["metadata"]["annotations"] = json!({annotations::STANDBY: "python"});
    let jobs = &mut manifest["spec"]["replicatedJobs"];
    let mut excluded = jobs[0].clone();
    excluded["name"] = json!("b");
    excluded["template"]["metadata"] = json!({"annotations": {annotations::STANDBY: "none"}});
    jobs.as_array_mut().context("a list")?.push(excluded);
    scene.create(manifest).await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    ensure!(standbys(&scene, "js-a-0").await? == [Some("python".to_owned())]);
    ensure!(standbys(&scene, "js-b-0").await? == [None]);

    // A change is allowed, and applies to Jobs that are created later.
    let off = json!({"metadata": {"annotations": {annotations::STANDBY: "none"}}});
    scene.patch(off).await?;
    ensure!(standbys(&scene, "js-a-0").await? == [Some("python".to_owned())]);
    recreate(&scene).await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 1).await?;
    ensure!(standbys(&scene, "js-a-0").await? == [None]);
    Ok(())
}

/// What the pods of the current Job say about standbys, once there are any.
async fn standbys(scene: &Scene, job: &str) -> Result<Vec<Option<String>>> {
    // It waits for them.
    scene.pods_become(job, "Pending").await?;
    let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
    let pods = scene.api::<Pod>().list(&of_job).await?.items;
    let live = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(live
        .map(|pod| pod.annotations().get(annotations::STANDBY).cloned())
        .collect())
}

async fn a_group_that_cannot_be_supervised_says_why(scene: Scene) -> Result<()> {
    let mut manifest = in_place();
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostPID"] = json!(true);
    scene.create(manifest).await?;
    let jobs = scene.until_jobs(&["js-a-0"], 0).await?;
    let template = jobs[0].spec.as_ref().map(|spec| &spec.template);
    let marks = template.and_then(|template| template.metadata.as_ref());
    let mark = marks.and_then(|meta| meta.annotations.as_ref()?.get(annotations::IN_PLACE));
    ensure!(mark.is_none(), "no daemon could restart its containers: {mark:?}");
    let note = scene.until_event("RestartNotSupervised").await?;
    ensure!(note.contains("replicatedJob a sets hostPID"), "{note}");
    Ok(())
}

async fn a_recreation_asked_for_in_the_status_is_carried_out(scene: Scene) -> Result<()> {
    scene.create(in_place()).await?;
    let before = scene.until_jobs(&["js-a-0"], 0).await?[0].uid();
    recreate(&scene).await?;
    let after = scene.until_jobs(&["js-a-0"], 1).await?[0].uid();
    ensure!(before != after);
    Ok(())
}

/// Asks for a recreation, as the coordinator of a group does.
async fn recreate(scene: &Scene) -> Result<()> {
    let status = json!({"status": {"restarts": 1, "restartsCountTowardsMax": 1}});
    let api = scene.api::<lockstep_api::JobSet>();
    api.patch_status("js", &Default::default(), &kube::api::Patch::Merge(status))
        .await?;
    Ok(())
}
