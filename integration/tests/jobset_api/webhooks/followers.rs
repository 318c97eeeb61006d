//! What the webhook says of follower pods. The test creates them itself, unknown to any Job
//! controller.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::PostParams;
use lockstep_api::annotations::EXCLUSIVE_TOPOLOGY;
use lockstep_api::labels;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use super::{refusal, setup};
use crate::placement::{RACK, bind, node};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// Creates a pod with the marks of this Job. Its index is only in an annotation.
async fn make(scene: &Scene, job: &Job, index: &str, change: impl Fn(&mut Value)) -> Result<Pod> {
    let marks = |all: &std::collections::BTreeMap<String, String>| -> Value {
        let ours = all.iter().filter(|(key, _)| key.contains("jobset.sigs.k8s.io/"));
        ours.map(|(key, value)| (key.clone(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut annotations = marks(job.annotations());
    annotations[EXCLUSIVE_TOPOLOGY] = json!(RACK);
    annotations[labels::BATCH_JOB_COMPLETION_INDEX] = json!(index);
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": job.name_any(), "uid": job.uid(), "controller": true,
    });
    let mut pod = json!({
        "metadata": {
            "generateName": format!("{}-{index}-", job.name_any()),
            "labels": marks(job.labels()), "annotations": annotations, "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    });
    change(&mut pod);
    Ok(scene
        .api()
        .create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?)
}

/// Checks that it was refused with exactly this message.
fn ensure_refused(pod: Result<Pod>, message: &str) -> Result<()> {
    let status = refusal(pod)?;
    ensure!(
        status.code == 403
            && status
                .message
                .ends_with(&format!("denied the request: {message}")),
        "{status:?}, not {message}"
    );
    Ok(())
}

pub(super) async fn a_follower_is_told_what_it_waits_for(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    // The Job has no pods of its own and no Job controller, which would release the test's pods a
    // second later.
    let mut nobodys = replicated_job("a", 1);
    nobodys["template"]["spec"]["managedBy"] = json!("example.com/nobody");
    scene
        .create(jobset(json!({"suspend": true, "replicatedJobs": [nobodys]})))
        .await?;
    let job = scene.until_jobs(&["js-a-0"], 0).await?.remove(0);
    let follower = async |change: &dyn Fn(&mut Value)| make(&scene, &job, "1", change).await;
    let selects = |pod: &mut Value| pod["spec"]["nodeSelector"] = json!({RACK: "r1"});
    let nobody = "expected 1 leader pod (js-a-0-0), but got 0. this is an expected, transient error";
    let unscheduled =
        "leader pod not yet scheduled, not creating follower pod. this is an expected, transient error";
    let unset = "follower pod node selector not set";

    ensure_refused(follower(&|_| {}).await, unset)?;
    ensure_refused(
        follower(&|pod| pod["spec"]["nodeSelector"] = json!({"zone": "z"})).await,
        &format!("follower pod node selector for topology domain not found. missing selector: {RACK}"),
    )?;
    ensure_refused(follower(&selects).await, nobody)?;

    let leader = make(&scene, &job, "0", |_| {}).await?;
    ensure_refused(follower(&|_| {}).await, unset)?;
    ensure_refused(follower(&selects).await, unscheduled)?;
    let node = node(&scene, "n", json!({RACK: "r1"})).await?;
    bind(&scene, &leader.name_any(), &node).await?;
    let made = eventually("the follower is taken", PATIENCE, async || {
        follower(&|_| {}).await
    })
    .await?;
    let selector = made
        .spec
        .and_then(|spec| spec.node_selector)
        .context("no selector")?;
    ensure!(
        selector.get(RACK).is_some_and(|rack| rack == "r1"),
        "{selector:?}"
    );

    let of_another = |pod: &mut Value| {
        selects(pod);
        pod["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    };
    let leading = job.uid().unwrap_or_default();
    ensure_refused(
        follower(&of_another).await,
        &format!("follower pod owner UID (another) != leader pod owner UID ({leading})"),
    )?;
    let of_nobody = |pod: &mut Value| {
        selects(pod);
        pod["metadata"]["ownerReferences"] = json!([]);
    };
    ensure_refused(follower(&of_nobody).await, "follower pod has no owner reference")
}
