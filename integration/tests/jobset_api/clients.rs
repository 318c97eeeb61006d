//! The ways in which people and programs write JobSets.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(kubectl_applies_explains_waits_and_lists),
        case!(server_side_apply_by_two_owners_is_merged),
        case!(a_typed_client_that_knows_only_upstreams_fields_loses_none_of_ours),
        case!(an_object_that_was_never_defaulted_runs),
    ]
}

async fn kubectl(scene: &Scene, args: &[&str], input: &str) -> Result<String> {
    let mut all = vec!["--namespace", scene.namespace.name.as_str()];
    all.extend(args);
    scene.namespace.access.kubectl(&all, input).await
}

async fn kubectl_applies_explains_waits_and_lists(scene: Scene) -> Result<()> {
    let manifest = jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})).to_string();
    kubectl(&scene, &["apply", "-f", "-"], &manifest).await?;
    kubectl(&scene, &["apply", "-f", "-"], &manifest).await?;
    let applied = scene.api::<JobSet>().get("js").await?;
    ensure!(
        applied.metadata.generation == Some(1),
        "a second apply changes nothing"
    );
    scene.pods_become("js-a-0", "Succeeded").await?;
    let wait = ["wait", "--for=condition=Completed", "jobset/js", "--timeout=60s"];
    kubectl(&scene, &wait, "").await?;
    let list = kubectl(&scene, &["get", "jobsets"], "").await?;
    let mut lines = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let columns = lines.next().context("no header")?;
    ensure!(
        columns
            == [
                "NAME",
                "TERMINALSTATE",
                "RESTARTS",
                "COMPLETED",
                "SUSPENDED",
                "AGE"
            ],
        "{columns:?}"
    );
    let values = lines.next().context("no line")?;
    ensure!(
        values.starts_with(&["js", "Completed", "0", "True"]),
        "{values:?}"
    );
    let field = "jobset.spec.executionPolicy.replicatedJobsStatus";
    // The API server describes a new definition only some time after it serves it.
    eventually("the field is explained", PATIENCE, async || {
        let explained = kubectl(&scene, &["explain", field], "").await?;
        ensure!(
            explained.contains("Succeeded") && explained.contains("FIELD: replicatedJobsStatus <string>"),
            "{explained}"
        );
        Ok(())
    })
    .await
}

async fn server_side_apply_by_two_owners_is_merged(scene: Scene) -> Result<()> {
    let api = scene.api::<JobSet>();
    let apply = async |manager: &str, patch: Value| {
        api.patch("js", &PatchParams::apply(manager), &Patch::Apply(patch))
            .await
    };
    let spec = json!({"suspend": true, "replicatedJobs": [replicated_job("a", 1), replicated_job("b", 1)]});
    apply("user", jobset(spec.clone())).await?;
    // Applies as an admission controller that owns only its selector.
    let selected =
        json!({"name": "a", "template": {"spec": {"template": {"spec": {"nodeSelector": {"zone": "z"}}}}}});
    apply("queue", jobset(json!({"replicatedJobs": [selected]}))).await?;
    let js = apply("user", jobset(spec)).await?;
    let pod = |job: &lockstep_api::ReplicatedJob| job.template.spec.as_ref()?.template.spec.clone();
    let selectors: Vec<bool> = js
        .spec
        .replicated_jobs
        .iter()
        .map(|job| pod(job).is_some_and(|pod| pod.node_selector.is_some()))
        .collect();
    ensure!(selectors == [true, false], "{selectors:?}");
    Ok(())
}

/// A replicatedJob as a typed Go client writes it: all fields of upstream's types, and no others.
async fn a_typed_client_that_knows_only_upstreams_fields_loses_none_of_ours(scene: Scene) -> Result<()> {
    let mut manifest = jobset(json!({
        "suspend": true,
        "executionPolicy": {"executionPolicyOrder": "InOrder", "replicatedJobsStatus": "Ready"},
        "gang": {
            "replicatedJobs": [{"name": "a", "minAvailable": 1}, {"name": "b", "minAvailable": 1}],
            "scheduleTimeoutSeconds": 7, "backend": "Gates",
        },
        "replicatedJobs": [replicated_job("a", 1), replicated_job("b", 2)],
    }));
    manifest["metadata"]["annotations"] = json!({"lockstep.dev/restart-grace": "1s"});
    let created = scene.create(manifest).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    let mut jobs = serde_json::to_value(&created.spec.replicated_jobs)?;
    for job in jobs.as_array_mut().context("a list")? {
        job["template"]["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": "z"});
    }
    let resumed = scene
        .patch(json!({"spec": {"suspend": false, "replicatedJobs": jobs}}))
        .await?;
    ensure!(resumed.spec.execution_policy == created.spec.execution_policy);
    ensure!(created.spec.gang.is_some() && resumed.spec.gang == created.spec.gang);
    ensure!(resumed.metadata.annotations == created.metadata.annotations);
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-b-1"], 0).await?;

    // Such a client writes the whole object back and would lose the field. That is refused rather
    // than silently accepted.
    eventually("the loss is refused", PATIENCE, async || {
        let mut whole = scene.api::<JobSet>().get("js").await?;
        whole.spec.execution_policy = None;
        let written = scene.api().replace("js", &Default::default(), &whole).await;
        let error = written.err().context("the field was lost")?.to_string();
        ensure!(error.contains("spec.executionPolicy"), "{error}");
        Ok(())
    })
    .await
}

async fn an_object_that_was_never_defaulted_runs(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [{
            "name": "a",
            "template": {"spec": {"template": {"spec": {"containers": [{"name": "worker", "image": "none"}]}}}},
        }]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let job = eventually("the job", PATIENCE, async || {
        Ok(scene.api::<Job>().get("js-a-0").await?)
    })
    .await?;
    let spec = job.spec.unwrap_or_default();
    ensure!(spec.suspend == Some(false));
    let pod = spec.template.spec.unwrap_or_default();
    ensure!(pod.restart_policy.as_deref() == Some("OnFailure"));
    ensure!(pod.subdomain.as_deref() == Some("js"));
    Ok(())
}
