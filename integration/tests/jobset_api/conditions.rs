//! Conditions and their events: when they appear, what they say, and when they do not change.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lockstep_api::{JobSet, JobSetStatus, labels};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::restarts::{ALL, create};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};
use crate::told::events;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_restart_is_over_when_the_jobset_is_suspended),
        case!(a_restart_is_over_when_the_jobset_ends),
        case!(what_never_was_is_not_said_to_be_over),
        case!(the_time_of_a_condition_is_that_of_its_last_change),
        case!(of_jobs_that_failed_the_first_is_named alone),
        case!(a_single_job_can_be_made_anew_beyond_the_limit),
        case!(restarts_of_jobs_and_of_the_set_use_up_one_limit),
        case!(a_time_to_live_that_is_set_later_counts_from_the_end),
        case!(policies_never_change),
        case!(in_order_says_so_anew_at_each_restart),
    ]
}

fn condition(status: &JobSetStatus, type_: &str) -> Result<Condition> {
    let found = status.condition(type_).cloned();
    found.with_context(|| format!("no {type_} in {:?}", status.conditions))
}

/// Restarts the JobSet of [`create`] once, and leaves it before its Jobs are ready.
async fn restarted(scene: &Scene) -> Result<()> {
    create(scene, "Recreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    let status = scene
        .until_condition("RestartingJobSet", "True", "DefaultFailurePolicy")
        .await?;
    let message = condition(&status, "RestartingJobSet")?.message;
    ensure!(
        message == "applying RestartJobSet failure policy action (first failed job: js-a-0)",
        "{message}"
    );
    ensure!(scene.until_event("DefaultFailurePolicy").await? == message);
    scene.until_jobs(&ALL, 1).await?;
    Ok(())
}

async fn is_over(scene: &Scene, reason: &str, message: &str) -> Result<()> {
    let status = scene.until_condition("RestartingJobSet", "False", reason).await?;
    let said = condition(&status, "RestartingJobSet")?.message;
    ensure!(said == message, "{said}");
    ensure!(scene.until_event(reason).await? == message);
    Ok(())
}

async fn a_restart_is_over_when_the_jobset_is_suspended(scene: Scene) -> Result<()> {
    restarted(&scene).await?;
    scene.patch(json!({"spec": {"suspend": true}})).await?;
    is_over(&scene, "JobSetSuspended", "jobset is suspended").await?;
    let status = scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    ensure!(condition(&status, "Suspended")?.message == "jobset is suspended");
    scene.until_no_pods().await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    let status = scene.until_condition("Suspended", "False", "ResumeJobs").await?;
    ensure!(condition(&status, "Suspended")?.message == "jobset is resumed");
    ensure!(scene.until_event("ResumeJobs").await? == "jobset is resumed");
    // When the JobSet is ready again only the reason changes.
    scene.all_pods_become("Running").await?;
    is_over(&scene, "JobsReady", "all jobs are ready").await
}

async fn a_restart_is_over_when_the_jobset_ends(scene: Scene) -> Result<()> {
    restarted(&scene).await?;
    scene.all_pods_become("Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    is_over(&scene, "JobSetCompleted", "jobset completed successfully").await?;

    let other = scene.another().await?;
    restarted(&other).await?;
    other.pods_become("js-b-0", "Failed").await?;
    other
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    is_over(&other, "JobSetFailed", "jobset failed").await?;
    other.namespace.delete().await
}

async fn what_never_was_is_not_said_to_be_over(scene: Scene) -> Result<()> {
    create(&scene, "Recreate", 1).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    let ready = |status: &JobSetStatus| {
        status
            .replicated_jobs_status
            .iter()
            .map(|counts| counts.ready)
            .sum::<i32>()
            == 3
    };
    let status = scene.until_status("all are ready", ready).await?;
    ensure!(status.conditions.is_empty(), "{:?}", status.conditions);
    scene.all_pods_become("Succeeded").await?;
    let status = scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    ensure!(status.conditions.len() == 1, "{:?}", status.conditions);
    ensure!((status.restarts, status.restarts_count_towards_max) == (0, 0));
    Ok(())
}

/// As though the condition had changed long ago.
async fn backdate(scene: &Scene, type_: &str) -> Result<()> {
    let mut status = serde_json::to_value(scene.status().await?)?;
    let all = status["conditions"].as_array_mut().context("no conditions")?;
    for condition in all.iter_mut().filter(|condition| condition["type"] == type_) {
        condition["lastTransitionTime"] = json!(LONG_AGO);
    }
    let patch = Patch::Merge(json!({"status": {"conditions": all}}));
    scene
        .api::<JobSet>()
        .patch_status("js", &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

const LONG_AGO: &str = "2020-02-02T02:02:02Z";

async fn the_time_of_a_condition_is_that_of_its_last_change(scene: Scene) -> Result<()> {
    let rules = json!([
        {"name": "one", "action": "RestartJobSet", "targetReplicatedJobs": ["a"]},
        {"name": "two", "action": "RestartJobSet", "targetReplicatedJobs": ["b"]},
    ]);
    scene
        .create(jobset(json!({
            "failurePolicy": {"maxRestarts": 2, "rules": rules},
            "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
        })))
        .await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.pods_become("js-a-1", "Failed").await?;
    scene
        .until_condition("RestartingJobSet", "True", "FailurePolicy_one")
        .await?;
    scene.until_jobs(&ALL, 1).await?;
    backdate(&scene, "RestartingJobSet").await?;
    let at = |status: &JobSetStatus| {
        anyhow::Ok(
            condition(status, "RestartingJobSet")?
                .last_transition_time
                .0
                .to_string(),
        )
    };

    // It restarts for another reason.
    scene.pods_become("js-b-0", "Failed").await?;
    let status = scene
        .until_condition("RestartingJobSet", "True", "FailurePolicy_two")
        .await?;
    ensure!(at(&status)? == LONG_AGO, "{:?}", status.conditions);
    scene.until_jobs(&ALL, 2).await?;
    scene.all_pods_become("Running").await?;
    let status = scene
        .until_condition("RestartingJobSet", "False", "JobsReady")
        .await?;
    ensure!(at(&status)? != LONG_AGO, "{:?}", status.conditions);
    Ok(())
}

async fn of_jobs_that_failed_the_first_is_named(scene: Scene) -> Result<()> {
    let rules = json!([
        {"name": "other", "action": "RestartJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        {"name": "any", "action": "FailJobSet"},
    ]);
    // The JobSet is suspended: there are no pods, and only the test decides what happens to the
    // Jobs.
    scene
        .create(jobset(json!({
            "suspend": true,
            "failurePolicy": {"maxRestarts": 5, "rules": rules},
            "replicatedJobs": [replicated_job("a", 2), replicated_job("b", 1)],
        })))
        .await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.control_plane().kill().await?;
    for (job, at) in [
        ("js-a-0", "2021-01-01T00:00:02Z"),
        ("js-a-1", "2021-01-01T00:00:01Z"),
        ("js-b-0", "2021-01-01T00:00:03Z"),
    ] {
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": at});
        let conditions = [condition("FailureTarget"), condition("Failed")];
        let status = Patch::Merge(json!({"status": {"startTime": LONG_AGO, "conditions": conditions}}));
        scene
            .api::<Job>()
            .patch_status(job, &PatchParams::default(), &status)
            .await?;
    }
    scene.control_plane().start().await?;
    let status = scene
        .until_condition("Failed", "True", "FailJobSetFailurePolicyAction")
        .await?;
    let message = condition(&status, "Failed")?.message;
    ensure!(
        message == "applying FailJobSet failure policy action (first failed job: js-a-1)",
        "{message}"
    );
    Ok(())
}

/// A JobSet of two replicatedJobs. A failed Job of the second is recreated by itself.
fn with_single(max_restarts: i32, action: &str) -> Value {
    let rule = json!({"name": "single", "action": action, "targetReplicatedJobs": ["b"]});
    jobset(json!({
        "failurePolicy": {"maxRestarts": max_restarts, "rules": [rule]},
        "replicatedJobs": [replicated_job("a", 1), replicated_job("b", 2)],
    }))
}

const THREE: [&str; 3] = ["js-a-0", "js-b-0", "js-b-1"];

/// Makes the second Job of `b` fail, and waits until that Job and no other is recreated.
async fn recreated(scene: &Scene, attempt: &str) -> Result<()> {
    let before = scene.until_jobs(&THREE, 0).await?;
    scene.pods_become("js-b-1", "Failed").await?;
    eventually("the job is recreated", PATIENCE, async || {
        let jobs = scene.until_jobs(&THREE, 0).await?;
        ensure!(jobs[2].uid() != before[2].uid(), "it is not");
        ensure!(jobs[0].uid() == before[0].uid() && jobs[1].uid() == before[1].uid());
        ensure!(jobs[2].labels()[labels::JOB_RESTART_ATTEMPT] == attempt);
        ensure!(jobs[2].annotations()[labels::JOB_RESTART_ATTEMPT] == attempt);
        ensure!(jobs[1].labels()[labels::JOB_RESTART_ATTEMPT] == "0");
        Ok(())
    })
    .await
}

async fn a_single_job_can_be_made_anew_beyond_the_limit(scene: Scene) -> Result<()> {
    scene
        .create(with_single(0, "RestartJobAndIgnoreMaxRestarts"))
        .await?;
    recreated(&scene, "1").await?;
    recreated(&scene, "2").await?;
    let note = scene
        .until_event("RestartJobAndIgnoreMaxRestartsFailurePolicyAction")
        .await?;
    ensure!(
        note == "applying RestartJobAndIgnoreMaxRestarts failure policy action (first failed job: js-b-1)",
        "{note}"
    );
    let status = scene.status().await?;
    let of_b = status.replicated_job("b").cloned().unwrap_or_default();
    ensure!(of_b.job_restarts == [0, 2], "{of_b:?}");
    ensure!(
        of_b.job_restarts_count_towards_max
            .iter()
            .all(|count| *count == 0),
        "{of_b:?}"
    );
    ensure!((status.restarts, status.restarts_count_towards_max) == (0, 0));
    ensure!(status.condition("RestartingJobSet").is_none());
    scene.pods_become("js-a-0", "Failed").await?;
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    Ok(())
}

async fn restarts_of_jobs_and_of_the_set_use_up_one_limit(scene: Scene) -> Result<()> {
    scene.create(with_single(2, "RestartJob")).await?;
    recreated(&scene, "1").await?;
    scene.pods_become("js-a-0", "Failed").await?;
    // A Job that was recreated before is recreated in the next attempt, too.
    let jobs = scene.until_jobs(&THREE, 1).await?;
    ensure!(jobs[2].labels()[labels::JOB_RESTART_ATTEMPT] == "1");
    let status = scene.status().await?;
    ensure!((status.restarts, status.restarts_count_towards_max) == (1, 1));
    let of_b = status.replicated_job("b").cloned().unwrap_or_default();
    ensure!((of_b.job_restarts, of_b.job_restarts_count_towards_max) == (vec![0, 1], vec![0, 1]));
    scene.pods_become("js-b-0", "Failed").await?;
    let status = scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    let message = condition(&status, "Failed")?.message;
    ensure!(
        message == "jobset failed due to reaching max number of restarts (first failed job: js-b-0)",
        "{message}"
    );
    Ok(())
}

async fn a_time_to_live_that_is_set_later_counts_from_the_end(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    scene
        .patch(json!({"spec": {"ttlSecondsAfterFinished": 3600}}))
        .await?;
    backdate(&scene, "Completed").await?;
    eventually("the jobset is gone", PATIENCE, async || {
        ensure!(scene.api::<JobSet>().get_opt("js").await?.is_none());
        ensure!(scene.jobs().await?.is_empty());
        Ok(())
    })
    .await
}

async fn policies_never_change(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({
            "suspend": true,
            "network": {"enableDNSHostnames": true},
            "successPolicy": {"operator": "All"},
            "failurePolicy": {"maxRestarts": 1},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": [replicated_job("a", 1)],
        })))
        .await?;
    for (field, value) in [
        ("network", json!({"subdomain": "other"})),
        ("successPolicy", json!({"operator": "Any"})),
        ("failurePolicy", json!({"maxRestarts": 2})),
        ("startupPolicy", json!({"startupPolicyOrder": "InOrder"})),
    ] {
        let changed = scene.patch(json!({"spec": {field: value}})).await;
        let error = changed.err().context("it was taken")?.to_string();
        ensure!(
            error.contains(&format!("spec.{field}: Invalid value")) && error.contains("Value is immutable"),
            "{error}"
        );
    }
    Ok(())
}

async fn in_order_says_so_anew_at_each_restart(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), replicated_job("b", 1)];
    scene
        .create(jobset(json!({
            "failurePolicy": {"maxRestarts": 1},
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "replicatedJobs": jobs,
        })))
        .await?;
    let both = ["js-a-0", "js-b-0"];
    for attempt in [0, 1] {
        scene.until_jobs(&both[..1], attempt).await?;
        let status = scene
            .until_condition(
                "StartupPolicyInProgress",
                "True",
                "InOrderStartupPolicyInProgress",
            )
            .await?;
        ensure!(
            condition(&status, "StartupPolicyInProgress")?.message
                == "in order startup policy is in progress"
        );
        ensure!(!status.is_true("StartupPolicyCompleted"));
        scene.pods_become("js-a-0", "Running").await?;
        scene.until_jobs(&both, attempt).await?;
        scene.pods_become("js-b-0", "Running").await?;
        let status = scene
            .until_condition("StartupPolicyCompleted", "True", "InOrderStartupPolicyCompleted")
            .await?;
        ensure!(
            condition(&status, "StartupPolicyCompleted")?.message == "in order startup policy has completed"
        );
        ensure!(!status.is_true("StartupPolicyInProgress"));
        scene.pods_become("js-b-0", "Failed").await?;
    }
    scene
        .until_condition("Failed", "True", "ReachedMaxRestarts")
        .await?;
    let told = eventually("both times it was told", PATIENCE, async || {
        let told = events(&scene, "InOrderStartupPolicyCompleted").await?;
        ensure!(told.len() >= 2, "{told:?}");
        Ok(told)
    })
    .await?;
    ensure!(told.len() == 2, "{told:?}");
    Ok(())
}
