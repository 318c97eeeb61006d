//! JobSets that restart in place, as far as an API server can show it.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lockstep_api::annotations;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(jobs_get_what_restarting_in_place_needs_and_pods_their_mark),
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
    let status = json!({"status": {"restarts": 1, "restartsCountTowardsMax": 1}});
    let api = scene.api::<lockstep_api::JobSet>();
    api.patch_status("js", &Default::default(), &kube::api::Patch::Merge(status))
        .await?;
    let after = scene.until_jobs(&["js-a-0"], 1).await?[0].uid();
    ensure!(before != after);
    Ok(())
}
