//! Input that cannot work, and how it is reported.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ResourceQuota, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};
use crate::told::events;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_dependency_on_itself_is_named),
        case!(what_restarting_in_place_cannot_work_with_is_named),
        case!(an_annotation_that_is_no_duration_is_named),
        case!(a_job_that_the_api_server_refuses_is_told_of_and_does_not_stop_the_others),
        case!(a_name_that_somebody_else_holds_is_told_of),
        case!(a_service_that_is_there_will_do_where_a_quota_forbids_another),
        case!(a_service_that_is_refused_is_told_of_once_and_made_when_it_may),
    ]
}

/// Creates a JobSet, and checks that it fails with a message that contains `expected`, and gets no
/// Jobs.
pub(crate) async fn fails_with(scene: &Scene, manifest: Value, expected: &str) -> Result<()> {
    scene.create(manifest).await?;
    let status = scene.until_condition("Failed", "True", "InvalidJobSet").await?;
    let message = status
        .condition("Failed")
        .map(|condition| condition.message.clone())
        .unwrap_or_default();
    ensure!(message.contains(expected), "{message}");
    ensure!(scene.until_event("InvalidJobSet").await?.contains(expected));
    ensure!(scene.jobs().await?.is_empty());
    Ok(())
}

async fn a_dependency_on_itself_is_named(scene: Scene) -> Result<()> {
    let mut second = replicated_job("b", 1);
    second["dependsOn"] = json!([{"name": "b", "status": "Ready"}]);
    let manifest = jobset(json!({"replicatedJobs": [replicated_job("a", 1), second]}));
    fails_with(
        &scene,
        manifest,
        "spec.replicatedJobs[1].dependsOn: replicatedJob: b cannot depend on replicatedJob: b",
    )
    .await
}

async fn what_restarting_in_place_cannot_work_with_is_named(scene: Scene) -> Result<()> {
    let manifest = jobset(json!({
        "failurePolicy": {"restartStrategy": "InPlaceRestart"},
        "replicatedJobs": [replicated_job("a", 1)],
    }));
    fails_with(
        &scene,
        manifest,
        "spec.replicatedJobs[0].template.spec.backoffLimit: Invalid value: 0",
    )
    .await
}

async fn an_annotation_that_is_no_duration_is_named(scene: Scene) -> Result<()> {
    let mut job = replicated_job("a", 1);
    if let Some(spec) = job["template"]["spec"].as_object_mut() {
        spec.remove("backoffLimit");
    }
    let mut manifest = jobset(json!({"replicatedJobs": [job]}));
    manifest["metadata"]["annotations"] = json!({"alpha.jobset.sigs.k8s.io/inplace-timeout": "soon"});
    fails_with(
        &scene,
        manifest,
        "metadata.annotations[alpha.jobset.sigs.k8s.io/inplace-timeout]",
    )
    .await
}

async fn a_job_that_the_api_server_refuses_is_told_of_and_does_not_stop_the_others(
    scene: Scene,
) -> Result<()> {
    let mut bad = replicated_job("a", 1);
    bad["template"]["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    scene
        .create(jobset(json!({"replicatedJobs": [bad, replicated_job("b", 1)]})))
        .await?;
    let note = scene.until_event("JobCreationFailed").await?;
    ensure!(
        note.contains("job \"js-a-0\" creation failed") && note.contains("restartPolicy"),
        "{note}"
    );
    scene.until_jobs(&["js-b-0"], 0).await?;
    Ok(())
}

async fn a_name_that_somebody_else_holds_is_told_of(scene: Scene) -> Result<()> {
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "js-a-0"},
        "spec": replicated_job("a", 1)["template"]["spec"],
    });
    let jobs = scene.api::<k8s_openapi::api::batch::v1::Job>();
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?)
        .await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let note = scene.until_event("JobCreationFailed").await?;
    ensure!(
        note == "job \"js-a-0\" creation failed with error: jobs.batch \"js-a-0\" already exists",
        "{note}"
    );
    // Once the name is free the JobSet gets its Job.
    jobs.delete("js-a-0", &DeleteParams::background()).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    Ok(())
}

fn headless(name: &str) -> Value {
    let spec = json!({"clusterIP": "None", "selector": {"jobset.sigs.k8s.io/jobset-name": "js"}});
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Limits the number of Services from now on.
async fn services_allowed(scene: &Scene, most: u32) -> Result<()> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "full"}, "spec": {"hard": {"services": most.to_string()}},
    });
    let by = PatchParams::apply("test").force();
    scene
        .api::<ResourceQuota>()
        .patch("full", &by, &Patch::Apply(quota))
        .await?;
    let services = scene.api::<Service>();
    let there = services.list(&ListParams::default()).await?.items.len();
    if there < usize::try_from(most)? {
        // The Service that waits may come first, and then there is room for no other.
        return Ok(());
    }
    scene.until_quota_refuses::<Service>(headless("more")).await
}

/// As if upstream had created the Service, without our label.
async fn a_service_that_is_there_will_do_where_a_quota_forbids_another(scene: Scene) -> Result<()> {
    let service = serde_json::from_value(headless("js"))?;
    let services = scene.api::<Service>();
    services.create(&PostParams::default(), &service).await?;
    services_allowed(&scene, 1).await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await.map(drop)
}

async fn a_service_that_is_refused_is_told_of_once_and_made_when_it_may(scene: Scene) -> Result<()> {
    const REASON: &str = "HeadlessServiceCreationFailed";
    services_allowed(&scene, 0).await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let note = scene.until_event(REASON).await?;
    ensure!(
        note.starts_with("services \"js\" is forbidden: exceeded quota: full"),
        "{note}"
    );
    let tried = |number: u32| {
        let log = scene.control_plane();
        let failed = "reconcile failed, will retry";
        log.logged_with(&[failed, &scene.namespace.name, &format!("failures={number} ")])
    };
    eventually("it is tried again", PATIENCE, async || {
        ensure!(tried(3) > 0);
        Ok(())
    })
    .await?;
    ensure!(scene.jobs().await?.is_empty(), "pods would have no names");
    services_allowed(&scene, 1).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let told = events(&scene, REASON).await?;
    ensure!(
        told.len() == 1 && told[0].series.is_none() && told[0].type_.as_deref() == Some("Warning"),
        "{told:?}"
    );

    // A repeated failure is reported again, for another version of the JobSet. Running Jobs are not
    // touched.
    scene
        .until_status("it is counted", |status| {
            !status.replicated_jobs_status.is_empty()
        })
        .await?;
    services_allowed(&scene, 0).await?;
    let services = scene.api::<Service>();
    services.delete("js", &DeleteParams::default()).await?;
    // The quota may count the deleted Service for a moment. Another message is another event.
    eventually("it is reported again", PATIENCE, async || {
        ensure!(events(&scene, REASON).await?.len() >= 2);
        Ok(())
    })
    .await?;
    services_allowed(&scene, 1).await?;
    eventually("the service is made", PATIENCE, async || {
        services.get("js").await.map_err(Into::into)
    })
    .await?;
    scene.until_jobs(&["js-a-0"], 0).await.map(drop)
}
