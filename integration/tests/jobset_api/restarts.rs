//! Restarts by recreation, and their limit.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lockstep_api::labels;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_failed_job_has_all_jobs_made_anew_until_max_restarts),
        case!(blocking_recreate_makes_none_anew_before_all_of_before_are_gone),
        case!(recreate_makes_each_anew_once_its_own_name_is_free),
        case!(the_first_matching_rule_decides),
    ]
}

pub(crate) async fn create(scene: &Scene, strategy: &str, max_restarts: i32) -> Result<()> {
    scene
        .create(jobset(json!({
            "failurePolicy": {"maxRestarts": max_restarts, "restartStrategy": strategy},
            "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
        })))
        .await?;
    Ok(())
}

pub(crate) const ALL: [&str; 3] = ["js-a-0", "js-a-1", "js-b-0"];

async fn a_failed_job_has_all_jobs_made_anew_until_max_restarts(scene: Scene) -> Result<()> {
    create(&scene, "Recreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    scene.pods_become("js-a-1", "Failed").await?;
    scene
        .until_condition("RestartingJobSet", "True", "DefaultFailurePolicy")
        .await?;
    scene.until_jobs(&ALL, 1).await?;
    let status = scene.status().await?;
    ensure!((status.restarts, status.restarts_count_towards_max) == (1, 1));
    let note = scene.until_event("RestartJobSetFailurePolicyAction").await?;
    ensure!(
        note == "applying RestartJobSet failure policy action (first failed job: js-a-1)",
        "{note}"
    );
    scene.all_pods_become("Running").await?;
    scene
        .until_condition("RestartingJobSet", "False", "JobsReady")
        .await?;

    scene.pods_become("js-b-0", "Failed").await?;
    let status = scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    ensure!((status.restarts, status.restarts_count_towards_max) == (1, 1));
    let message = &status
        .condition("Failed")
        .map(|condition| condition.message.clone())
        .unwrap_or_default();
    let expected = "jobset failed due to reaching max number of restarts (first failed job: js-b-0)";
    ensure!(message == expected, "{message}");
    scene.until_jobs(&["js-b-0"], 1).await?;
    Ok(())
}

const HOLD: &str = "example.org/held-back";

/// Keeps a deleted Job in place for a while: foreground deletion waits for the pod, and the pod
/// waits for its finalizer.
struct Held<'a> {
    scene: &'a Scene,
    pod: String,
}

impl<'a> Held<'a> {
    async fn back(scene: &'a Scene, job: &str) -> Result<Self> {
        let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
        let pod = eventually(&format!("a pod of {job}"), PATIENCE, async || {
            let pods = scene.api::<Pod>().list(&of_job).await?.items;
            Ok(pods.first().context("none yet")?.name_any())
        })
        .await?;
        let held = Self { scene, pod };
        held.patch(json!({"finalizers": [HOLD]})).await?;
        Ok(held)
    }

    async fn release(self) -> Result<()> {
        self.patch(json!({"$deleteFromPrimitiveList/finalizers": [HOLD]}))
            .await
    }

    /// The Job controller's own finalizer stays as it is.
    async fn patch(&self, metadata: Value) -> Result<()> {
        let patch = Patch::Strategic(json!({"metadata": metadata}));
        self.scene
            .api::<Pod>()
            .patch(&self.pod, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }
}

/// Waits until the control plane has reconciled the JobSet twice from now on: the second pass
/// starts after the first has acted.
async fn looked_at_twice(scene: &Scene) -> Result<()> {
    let services = scene.api::<Service>();
    for _ in 0..2 {
        let before = services.get("js").await?.uid();
        services.delete("js", &DeleteParams::default()).await?;
        eventually("the service is recreated", PATIENCE, async || {
            ensure!(services.get("js").await?.uid() != before);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn blocking_recreate_makes_none_anew_before_all_of_before_are_gone(scene: Scene) -> Result<()> {
    create(&scene, "BlockingRecreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    let held = Held::back(&scene, "js-a-1").await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene
        .until_condition("RestartingJobSet", "True", "DefaultFailurePolicy")
        .await?;
    scene.until_seen(&["js-a-1 0 going"]).await?;
    let policy = scene.jobs().await?[0].finalizers().join(",");
    ensure!(policy.contains("foregroundDeletion"), "{policy:?}");
    looked_at_twice(&scene).await?;
    scene.until_seen(&["js-a-1 0 going"]).await?;
    // If only counts change, they are written some time later.
    let status = scene
        .until_status("no former Job is counted", |status| {
            status
                .replicated_job("a")
                .is_none_or(|counts| (counts.active, counts.ready, counts.failed) == (0, 0, 0))
        })
        .await?;
    ensure!((status.restarts, status.restarts_count_towards_max) == (1, 1));

    held.release().await?;
    scene.until_jobs(&ALL, 1).await?;
    scene.all_pods_become("Running").await?;
    scene
        .until_condition("RestartingJobSet", "False", "JobsReady")
        .await?;
    Ok(())
}

async fn recreate_makes_each_anew_once_its_own_name_is_free(scene: Scene) -> Result<()> {
    create(&scene, "Recreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    let held = Held::back(&scene, "js-a-1").await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene
        .until_seen(&["js-a-0 1", "js-a-1 0 going", "js-b-0 1"])
        .await?;
    held.release().await?;
    scene.until_jobs(&ALL, 1).await?;
    Ok(())
}

async fn the_first_matching_rule_decides(scene: Scene) -> Result<()> {
    let rule = json!({
        "name": "spare",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["BackoffLimitExceeded"],
        "targetReplicatedJobs": ["a"],
    });
    scene
        .create(jobset(json!({
            "failurePolicy": {"maxRestarts": 0, "rules": [rule]},
            "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
        })))
        .await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene
        .until_condition("RestartingJobSet", "True", "FailurePolicy_spare")
        .await?;
    scene.until_jobs(&ALL, 1).await?;
    let status = scene.status().await?;
    ensure!((status.restarts, status.restarts_count_towards_max) == (1, 0));
    scene.pods_become("js-b-0", "Failed").await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}
