//! Updates of existing JobSets, and claims that exist before their JobSet.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PostParams;
use lockstep_api::JobSet;
use serde_json::{Value, json};

use super::{ensure_invalid, refusal, setup};
use crate::placement::until_pods;
use crate::scene::{Scene, jobset, replicated_job};

/// A replicatedJob with this many pods in each Job.
fn sized(parallelism: i32, completions: i32) -> Value {
    let mut job = replicated_job("a", 1);
    let spec = &mut job["template"]["spec"];
    spec["parallelism"] = json!(parallelism);
    spec["completions"] = json!(completions);
    spec["completionMode"] = json!("Indexed");
    job
}

pub(super) async fn a_jobset_that_is_elastic_changes_its_size_and_nothing_else(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    scene
        .create(jobset(json!({"replicatedJobs": [sized(2, 2)]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let change = async |job: Value| scene.patch(json!({"spec": {"replicatedJobs": [job]}})).await;
    for (job, said) in [
        (
            sized(3, 2),
            "spec.replicatedJobs[0].template.spec.completions: Invalid value: 2: completions must be equal to parallelism for Elastic \
             Indexed Jobs",
        ),
        (
            sized(0, 0),
            "spec.replicatedJobs[0].template.spec.parallelism: Invalid value: 0: parallelism must be >= 1",
        ),
        (
            sized(0, 0),
            "spec.replicatedJobs[0].template.spec.completions: Invalid value: 0: completions must be >= 1",
        ),
    ] {
        ensure_invalid(change(job).await, said)?;
    }
    let mut more = sized(2, 2);
    more["replicas"] = json!(2);
    ensure_invalid(change(more).await, "spec.replicatedJobs: Invalid value")?;
    change(sized(3, 3)).await?;

    until_pods(&scene, "js-a-0", 3).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    let status = refusal(change(sized(2, 2)).await)?;
    let said = "spec.replicatedJobs[0].template.spec: Forbidden: Cannot mutate parallelism or completions when JobSet is in a \
                terminal state (Completed or Failed)";
    ensure!(status.code == 422 && status.message.contains(said), "{status:?}");
    Ok(())
}

pub(super) async fn a_claim_that_is_there_must_be_the_same_and_stay(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    let spec = |storage: &str| json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": storage}}});
    let claiming = |storage: &str, policy: Value| {
        let mut job = replicated_job("a", 1);
        job["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "data", "mountPath": "/data"}]);
        let template = json!({"metadata": {"name": "data"}, "spec": spec(storage)});
        let claims = json!([{"templates": [template], "retentionPolicy": policy}]);
        jobset(json!({"suspend": true, "volumeClaimPolicies": claims, "replicatedJobs": [job]}))
    };
    let stay = json!({"whenDeleted": "Retain"});
    let claim: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": {"name": "data-js"}, "spec": spec("1Gi")}))?;
    scene.api().create(&PostParams::default(), &claim).await?;
    ensure_invalid(
        scene.create(claiming("2Gi", stay.clone())).await,
        &format!(
            "spec does not match existing PVC data-js in namespace {}",
            scene.namespace.name
        ),
    )?;
    ensure_invalid(
        scene
            .create(claiming("1Gi", json!({"whenDeleted": "Delete"})))
            .await,
        "spec.volumeClaimPolicies[0].retentionPolicy.whenDeleted: Invalid value: \"Delete\": retentionPolicy must be retain when PVC exists",
    )?;
    let created: JobSet = scene.create(claiming("1Gi", stay)).await?;
    ensure!(created.spec.volume_claim_policies.len() == 1);

    // Without a policy the claim is deleted with the JobSet.
    let mut other = claiming("1Gi", Value::Null);
    other["metadata"]["name"] = json!("other");
    let created = scene.create(other).await?;
    let policy = serde_json::to_value(&created.spec.volume_claim_policies[0].retention_policy)?;
    ensure!(policy == json!({"whenDeleted": "Delete"}), "{policy}");
    Ok(())
}
