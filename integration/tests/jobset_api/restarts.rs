//! Restarts by recreation, and their end.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::fixture::{Case, case};
use crate::scene::{Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_failed_job_has_all_jobs_made_anew_until_max_restarts),
        case!(blocking_recreate_ends_in_the_same_place),
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

async fn blocking_recreate_ends_in_the_same_place(scene: Scene) -> Result<()> {
    create(&scene, "BlockingRecreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-a-0", "Failed").await?;
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
