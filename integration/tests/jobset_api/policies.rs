//! Failure and success policies, and recreation of single Jobs.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use lockstep_api::labels;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(fail_jobset_ends_it_at_once),
        case!(a_rule_matches_by_reason_and_message),
        case!(any_job_of_the_targets_completes_the_jobset),
        case!(all_jobs_of_the_targets_complete_the_jobset),
        case!(restart_job_makes_one_job_anew),
        case!(an_elastic_jobset_scales_its_jobs),
    ]
}

fn with_rules(max_restarts: i32, rules: Value) -> Value {
    jobset(json!({
        "failurePolicy": {"maxRestarts": max_restarts, "rules": rules},
        "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
    }))
}

const ALL: [&str; 3] = ["js-a-0", "js-a-1", "js-b-0"];

async fn fail_jobset_ends_it_at_once(scene: Scene) -> Result<()> {
    let rule = json!({"name": "lost", "action": "FailJobSet", "targetReplicatedJobs": ["b"]});
    scene.create(with_rules(5, json!([rule]))).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-b-0", "Failed").await?;
    let status = scene
        .until_condition("Failed", "True", "FailJobSetFailurePolicyAction")
        .await?;
    let message = status.condition("Failed").map(|failed| failed.message.as_str());
    ensure!(
        message == Some("applying FailJobSet failure policy action (first failed job: js-b-0)"),
        "{message:?}"
    );
    ensure!(status.restarts == 0);
    Ok(())
}

async fn a_rule_matches_by_reason_and_message(scene: Scene) -> Result<()> {
    let rules = json!([
        {"name": "other", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        {"name": "broken", "action": "FailJobSet", "onJobFailureMessagePatterns": ["("]},
        {"name": "spare", "action": "RestartJobSetAndIgnoreMaxRestarts",
         "onJobFailureReasons": ["PodFailurePolicy"], "onJobFailureMessagePatterns": ["exit code 4[0-9]"]},
    ]);
    let mut manifest = with_rules(0, rules);
    let codes = json!({"operator": "In", "values": [7, 42]});
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"] =
        json!({"rules": [{"action": "FailJob", "onExitCodes": codes}]});
    scene.create(manifest).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_exit("js-a-1", 42).await?;
    scene
        .until_condition("RestartingJobSet", "True", "FailurePolicy_spare")
        .await?;
    scene.until_jobs(&ALL, 1).await?;
    // No rule matches the same reason with another message: the default action applies.
    scene.pods_exit("js-a-1", 7).await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}

fn with_success(operator: &str, targets: &[&str]) -> Value {
    jobset(json!({
        "successPolicy": {"operator": operator, "targetReplicatedJobs": targets},
        "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
    }))
}

async fn any_job_of_the_targets_completes_the_jobset(scene: Scene) -> Result<()> {
    scene.create(with_success("Any", &["a"])).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-b-0", "Succeeded").await?;
    scene
        .until_status("b has succeeded", |status| {
            status
                .replicated_job("b")
                .is_some_and(|counts| counts.succeeded == 1)
        })
        .await?;
    ensure!(scene.status().await?.terminal_state.is_none());
    scene.pods_become("js-a-1", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    // Running Jobs are deleted, ended Jobs stay.
    scene.until_jobs(&["js-a-1", "js-b-0"], 0).await?;
    Ok(())
}

async fn all_jobs_of_the_targets_complete_the_jobset(scene: Scene) -> Result<()> {
    scene.create(with_success("All", &["a"])).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.pods_become("js-a-1", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    scene.until_jobs(&["js-a-0", "js-a-1"], 0).await?;
    Ok(())
}

async fn restart_job_makes_one_job_anew(scene: Scene) -> Result<()> {
    let rule = json!({"name": "one", "action": "RestartJob"});
    scene.create(with_rules(1, json!([rule]))).await?;
    let before = scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    scene.pods_become("js-a-1", "Failed").await?;
    let status = scene
        .until_status("it is counted", |status| {
            status
                .replicated_job("a")
                .is_some_and(|counts| counts.job_restarts == [0, 1])
        })
        .await?;
    ensure!(status.restarts == 0);
    let after = eventually("the job is recreated", PATIENCE, async || {
        let jobs = scene.until_jobs(&ALL, 0).await?;
        ensure!(jobs[1].uid() != before[1].uid());
        Ok(jobs)
    })
    .await?;
    ensure!(after[0].uid() == before[0].uid() && after[2].uid() == before[2].uid());
    ensure!(after[1].labels()[labels::JOB_RESTART_ATTEMPT] == "1");
    let note = scene.until_event("RestartJobFailurePolicyAction").await?;
    ensure!(
        note == "applying RestartJob failure policy action (first failed job: js-a-1)",
        "{note}"
    );
    scene.pods_become("js-b-0", "Failed").await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}

async fn an_elastic_jobset_scales_its_jobs(scene: Scene) -> Result<()> {
    let mut job = replicated_job("a", 1);
    job["template"]["spec"]["completionMode"] = json!("Indexed");
    scene
        .create(jobset(json!({"replicatedJobs": [job.clone()]})))
        .await?;
    let before = scene.until_jobs(&["js-a-0"], 0).await?[0].uid();
    for pods in [3, 2] {
        job["template"]["spec"]["parallelism"] = json!(pods);
        job["template"]["spec"]["completions"] = json!(pods);
        scene.patch(json!({"spec": {"replicatedJobs": [job]}})).await?;
        eventually(&format!("{pods} pods are asked for"), PATIENCE, async || {
            let job = scene.api::<Job>().get("js-a-0").await?;
            ensure!(job.uid() == before);
            let spec = job.spec.unwrap_or_default();
            ensure!((spec.parallelism, spec.completions) == (Some(pods), Some(pods)));
            Ok(())
        })
        .await?;
    }
    Ok(())
}
