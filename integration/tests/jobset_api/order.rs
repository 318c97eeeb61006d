//! The order in which replicatedJobs run: dependsOn, startupPolicy, and what all orders have in
//! common.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::execution_policy::ordered;
use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(complete_waits_for_every_job_of_every_target),
        case!(what_depends_on_a_failed_job_never_runs),
        case!(a_restart_begins_the_sequence_anew),
        case!(a_suspended_sequence_goes_on_where_it_was),
        case!(a_sequence_that_was_suspended_starts_again_in_its_order),
        case!(in_order_starts_one_after_the_other_and_says_so),
        case!(a_controller_killed_in_the_middle_of_a_sequence_goes_on alone),
    ]
}

pub(crate) fn depending(name: &str, on: &[(&str, &str)]) -> Value {
    let mut job = replicated_job(name, 1);
    job["dependsOn"] = on
        .iter()
        .map(|(name, status)| json!({"name": name, "status": status}))
        .collect();
    job
}

/// Waits until the status agrees with the Jobs, and checks that only `jobs` exist by then.
pub(crate) async fn only(scene: &Scene, what: &str, jobs: &[&str], counts: (&str, i32, i32)) -> Result<()> {
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
pub(crate) async fn begins_anew(scene: &Scene) -> Result<()> {
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
    // Dependencies also hold back suspended Jobs.
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

/// Waits until exactly these replicatedJobs, of one Job each, are suspended in the status and in
/// fact.
async fn until_suspended(scene: &Scene, expected: &[&str]) -> Result<()> {
    eventually(&format!("{expected:?} are suspended"), PATIENCE, async || {
        let status = scene.status().await?;
        let mut counted: Vec<&str> = status
            .replicated_jobs_status
            .iter()
            .filter(|counts| counts.suspended == 1 && (counts.active, counts.ready) == (0, 0))
            .map(|counts| counts.name.as_str())
            .collect();
        counted.sort_unstable();
        let jobs = scene.jobs().await?;
        let is_suspended = |name: &str| {
            let job = jobs.iter().find(|job| job.name_any() == format!("js-{name}-0"));
            job.and_then(|job| job.spec.as_ref())
                .and_then(|spec| spec.suspend)
                == Some(true)
        };
        let seen: Vec<&str> = ["a", "b", "c"]
            .into_iter()
            .filter(|name| is_suspended(name))
            .collect();
        ensure!(
            (&*counted, &*seen) == (expected, expected),
            "{counted:?}, {seen:?}"
        );
        Ok(())
    })
    .await
}

async fn a_sequence_that_was_suspended_starts_again_in_its_order(scene: Scene) -> Result<()> {
    let by_policy = ordered("Ready", json!({}));
    let by_dependencies = jobset(json!({"replicatedJobs": [
        replicated_job("a", 1), depending("b", &[("a", "Ready")]), depending("c", &[("b", "Ready")]),
    ]}));
    let jobs = ["a", "b", "c"].map(|name| replicated_job(name, 1));
    let by_startup_policy =
        jobset(json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": jobs}));
    for manifest in [by_policy, by_dependencies, by_startup_policy] {
        let scene = scene.another().await?;
        scene.create(manifest).await?;
        for job in ["js-a-0", "js-b-0", "js-c-0"] {
            scene.pods_become(job, "Running").await?;
        }
        // A Job without counts would look like one without pods.
        scene
            .until_status("all are ready", |status| {
                let counts = &status.replicated_jobs_status;
                counts.len() == 3 && counts.iter().all(|counts| counts.ready == 1)
            })
            .await?;
        scene.patch(json!({"spec": {"suspend": true}})).await?;
        scene
            .until_condition("Suspended", "True", "SuspendedJobs")
            .await?;
        until_suspended(&scene, &["a", "b", "c"]).await?;
        scene.until_no_pods().await?;

        scene.patch(json!({"spec": {"suspend": false}})).await?;
        for (job, waiting) in [("js-a-0", &["b", "c"][..]), ("js-b-0", &["c"]), ("js-c-0", &[])] {
            until_suspended(&scene, waiting).await?;
            scene.pods_become(job, "Running").await?;
        }
        let status = scene.until_condition("Suspended", "False", "ResumeJobs").await?;
        ensure!(status.restarts == 0);
        scene.namespace.delete().await?;
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
    ensure!(jobs[1].uid() == second, "a running Job was touched");
    Ok(())
}
