//! The order in which replicatedJobs run: dependsOn, executionPolicy, startupPolicy.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(complete_waits_for_every_job_of_every_target),
        case!(what_depends_on_a_failed_job_never_runs),
        case!(a_restart_begins_the_sequence_anew),
        case!(a_suspended_sequence_goes_on_where_it_was),
        case!(an_execution_policy_runs_one_replicated_job_after_the_other),
        case!(an_execution_policy_holds_while_suspended),
        case!(a_restart_with_an_execution_policy_begins_with_the_first),
        case!(an_execution_policy_can_wait_for_failure),
        case!(the_schema_refuses_orders_that_exclude_each_other),
        case!(in_order_starts_one_after_the_other_and_says_so),
        case!(a_controller_killed_in_the_middle_of_a_sequence_goes_on alone),
    ]
}

fn depending(name: &str, on: &[(&str, &str)]) -> Value {
    let mut job = replicated_job(name, 1);
    job["dependsOn"] = on
        .iter()
        .map(|(name, status)| json!({"name": name, "status": status}))
        .collect();
    job
}

/// Waits until the status counts what the Jobs show, and asserts that nothing but `jobs` was made by then.
async fn only(scene: &Scene, what: &str, jobs: &[&str], counts: (&str, i32, i32)) -> Result<()> {
    let (name, ready, succeeded) = counts;
    scene
        .until_status(what, |status| {
            status
                .replicated_job(name)
                .is_some_and(|counts| (counts.ready, counts.succeeded) == (ready, succeeded))
        })
        .await?;
    let seen: Vec<String> = scene.jobs().await?.iter().map(ResourceExt::name_any).collect();
    ensure!(seen == jobs, "{what}: {seen:?}");
    Ok(())
}

async fn complete_waits_for_every_job_of_every_target(scene: Scene) -> Result<()> {
    let last = depending("c", &[("a", "Complete"), ("b", "Ready")]);
    let jobs = [replicated_job("a", 2), replicated_job("b", 1), last];
    scene.create(jobset(json!({"replicatedJobs": jobs}))).await?;
    let first = ["js-a-0", "js-a-1", "js-b-0"];
    scene.until_jobs(&first, 0).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.pods_become("js-a-1", "Running").await?;
    only(&scene, "half of a is done", &first, ("a", 1, 1)).await?;
    scene.pods_become("js-a-1", "Succeeded").await?;
    only(&scene, "a is done, b is not ready", &first, ("a", 0, 2)).await?;
    scene.pods_become("js-b-0", "Running").await?;
    scene
        .until_jobs(&["js-a-0", "js-a-1", "js-b-0", "js-c-0"], 0)
        .await?;
    Ok(())
}

async fn what_depends_on_a_failed_job_never_runs(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), depending("b", &[("a", "Complete")])];
    scene.create(jobset(json!({"replicatedJobs": jobs}))).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene.until_condition("Failed", "True", "FailedJobs").await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    Ok(())
}

async fn a_restart_begins_the_sequence_anew(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), depending("b", &[("a", "Complete")])];
    scene
        .create(jobset(
            json!({"failurePolicy": {"maxRestarts": 1}, "replicatedJobs": jobs}),
        ))
        .await?;
    begins_anew(&scene).await
}

/// `b`, which runs when `a` is done, fails: that restarts the set, and `b` waits for `a` again.
async fn begins_anew(scene: &Scene) -> Result<()> {
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Failed").await?;
    scene.until_jobs(&["js-a-0"], 1).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 1).await?;
    Ok(())
}

async fn a_suspended_sequence_goes_on_where_it_was(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), depending("b", &[("a", "Ready")])];
    scene
        .create(jobset(json!({"suspend": true, "replicatedJobs": jobs})))
        .await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    // The dependency holds back even suspended Jobs.
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.patch(json!({"spec": {"suspend": true}})).await?;
    eventually("both are suspended", PATIENCE, async || {
        let jobs = scene.jobs().await?;
        ensure!(jobs.len() == 2);
        ensure!(
            jobs.iter()
                .all(|job| job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true))
        );
        Ok(())
    })
    .await
}

fn ordered(status: &str, more: Value) -> Value {
    let jobs = ["a", "b", "c"].map(|name| replicated_job(name, 1));
    let mut spec = json!({
        "executionPolicy": {"executionPolicyOrder": "InOrder", "replicatedJobsStatus": status},
        "replicatedJobs": jobs,
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    jobset(spec)
}

async fn an_execution_policy_runs_one_replicated_job_after_the_other(scene: Scene) -> Result<()> {
    scene.create(ordered("Succeeded", json!({}))).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Running").await?;
    only(&scene, "a is ready", &["js-a-0"], ("a", 1, 0)).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Succeeded").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    scene.pods_become("js-c-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    Ok(())
}

async fn an_execution_policy_holds_while_suspended(scene: Scene) -> Result<()> {
    scene.create(ordered("Ready", json!({"suspend": true}))).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    Ok(())
}

async fn a_restart_with_an_execution_policy_begins_with_the_first(scene: Scene) -> Result<()> {
    let policy = json!({"failurePolicy": {"maxRestarts": 1}});
    scene.create(ordered("Succeeded", policy)).await?;
    begins_anew(&scene).await
}

async fn an_execution_policy_can_wait_for_failure(scene: Scene) -> Result<()> {
    scene.create(ordered("Failed", json!({}))).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Failed").await?;
    scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    ensure!(scene.status().await?.terminal_state.is_none());
    scene.pods_become("js-c-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    Ok(())
}

async fn the_schema_refuses_orders_that_exclude_each_other(scene: Scene) -> Result<()> {
    let refused = async |manifest: Value, message: &str| -> Result<()> {
        let error = scene.create(manifest).await.err().map(|error| error.to_string());
        ensure!(
            error.as_ref().is_some_and(|error| error.contains(message)),
            "{error:?}"
        );
        Ok(())
    };
    let in_order = json!({"startupPolicyOrder": "InOrder"});
    refused(
        ordered("Ready", json!({"startupPolicy": in_order})),
        "ExecutionPolicy and StartupPolicy APIs are mutually exclusive",
    )
    .await?;
    let mut both = ordered("Ready", json!({}));
    both["spec"]["replicatedJobs"][1] = depending("b", &[("a", "Ready")]);
    refused(both, "ExecutionPolicy and DependsOn APIs are mutually exclusive").await?;
    refused(
        ordered("Done", json!({})),
        "replicatedJobsStatus: Unsupported value",
    )
    .await?;

    let js = scene.create(ordered("Ready", json!({}))).await?;
    ensure!(js.spec.execution_policy.is_some());
    for policy in [json!(null), json!({"replicatedJobsStatus": "Active"})] {
        let changed = scene.patch(json!({"spec": {"executionPolicy": policy}})).await;
        let error = changed.err().map(|error| error.to_string());
        ensure!(
            error.as_ref().is_some_and(
                |error| error.contains("spec.executionPolicy") && error.contains("Value is immutable")
            ),
            "{error:?}"
        );
    }
    Ok(())
}

async fn in_order_starts_one_after_the_other_and_says_so(scene: Scene) -> Result<()> {
    let jobs = [replicated_job("a", 1), replicated_job("b", 1)];
    scene
        .create(jobset(
            json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": jobs}),
        ))
        .await?;
    scene
        .until_condition(
            "StartupPolicyInProgress",
            "True",
            "InOrderStartupPolicyInProgress",
        )
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Running").await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    scene.pods_become("js-b-0", "Running").await?;
    let status = scene
        .until_condition("StartupPolicyCompleted", "True", "InOrderStartupPolicyCompleted")
        .await?;
    ensure!(!status.is_true("StartupPolicyInProgress"));
    Ok(())
}

async fn a_controller_killed_in_the_middle_of_a_sequence_goes_on(scene: Scene) -> Result<()> {
    let jobs = [
        replicated_job("a", 1),
        depending("b", &[("a", "Complete")]),
        depending("c", &[("b", "Ready")]),
    ];
    scene.create(jobset(json!({"replicatedJobs": jobs}))).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    let second = scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?[1].uid();
    scene.control_plane().kill().await?;
    scene.pods_become("js-b-0", "Running").await?;
    scene.control_plane().start().await?;
    let jobs = scene.until_jobs(&["js-a-0", "js-b-0", "js-c-0"], 0).await?;
    ensure!(jobs[1].uid() == second, "what runs is left alone");
    Ok(())
}
