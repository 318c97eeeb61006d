//! Clients that read JobSets into their own types and write them back, as Go programs do.

use anyhow::{Context, Result};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use lockstep_api::JobSet;
use serde_json::{Value, json};

use super::{ensure_invalid, setup};
use crate::scene::{Scene, jobset, replicated_job};

/// The JobSet as its user writes it in YAML.
fn written() -> Value {
    let mut job = replicated_job("a", 1);
    let container = &mut job["template"]["spec"]["template"]["spec"]["containers"][0];
    container["env"] = json!([{"name": "E"}]);
    container["resources"] = json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}});
    jobset(json!({"suspend": true, "replicatedJobs": [job]}))
}

/// Changes the replicatedJob to what Go's types write for it.
fn typed(job: &mut Value) {
    job["template"]["metadata"] = json!({});
    let pod = &mut job["template"]["spec"]["template"];
    pod["metadata"] = json!({});
    pod["spec"]["hostNetwork"] = json!(false);
    let container = &mut pod["spec"]["containers"][0];
    container["env"][0]["value"] = json!("");
    container["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {}});
    container["tty"] = json!(false);
}

/// Reads the JobSet, changes it, and writes it back whole. Repeats that if the object has changed
/// meanwhile.
async fn put(scene: &Scene, change: impl Fn(&mut Value)) -> Result<DynamicObject> {
    let kind = ApiResource::erase::<JobSet>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(scene.client(), &scene.namespace.name, &kind);
    loop {
        let mut jobset = api.get("js").await?;
        change(&mut jobset.data["spec"]);
        match api.replace("js", &PostParams::default(), &jobset).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            written => return Ok(written?),
        }
    }
}

pub(super) async fn a_client_that_writes_zero_values_out_resumes_a_jobset(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    scene.create(written()).await?;
    put(&scene, |spec| {
        typed(&mut spec["replicatedJobs"][0]);
        spec["suspend"] = json!(false);
    })
    .await
    .context("resumed by a typed client")?;
    scene.until_jobs(&["js-a-0"], 0).await?;

    // A real change is still refused.
    let more = put(&scene, |spec| {
        let job = &mut spec["replicatedJobs"][0];
        typed(job);
        job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
            json!("2");
    })
    .await;
    ensure_invalid(more, "containers[0].resources.requests.cpu\": field is immutable")?;

    // The author's file still agrees with what the typed client has stored.
    put(&scene, |spec| {
        spec["replicatedJobs"] = written()["spec"]["replicatedJobs"].clone();
    })
    .await
    .context("written as it was at first")?;
    Ok(())
}
