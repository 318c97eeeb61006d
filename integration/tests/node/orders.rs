//! Stages and dependencies with real pods, as in the examples.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(steps_run_one_after_the_other),
        case!(what_depends_on_others_runs_when_they_are_ready_or_done),
        case!(a_cycle_is_refused),
    ]
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// Applies an example and waits until it completes. Returns its Jobs by name, with the times of
/// their creation and end.
async fn completes(scene: &Scene, example: &str) -> Result<Vec<(String, String, String)>> {
    let file = format!("{EXAMPLES}/{example}.yaml");
    scene.namespace.kubectl(&["apply", "--filename", &file]).await?;
    let jobset = format!("jobset/{example}");
    let wait = ["wait", "--for=condition=Completed", "--timeout=300s", &jobset];
    scene.namespace.kubectl(&wait).await?;
    let jobs = scene
        .namespace
        .kubectl(&["get", "jobs", "--output", "json"])
        .await?;
    let jobs: Value = serde_json::from_str(&jobs)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let jobs = jobs["items"].as_array().into_iter().flatten().map(|job| {
        (
            text(&job["metadata"]["name"]),
            text(&job["metadata"]["creationTimestamp"]),
            text(&job["status"]["completionTime"]),
        )
    });
    Ok(jobs.collect())
}

fn of<'a>(
    jobs: &'a [(String, String, String)],
    part: &'a str,
) -> impl Iterator<Item = &'a (String, String, String)> {
    jobs.iter().filter(move |(name, _, _)| name.contains(part))
}

async fn steps_run_one_after_the_other(scene: Scene) -> Result<()> {
    let jobs = completes(&scene, "execution-policy").await?;
    ensure!(jobs.len() == 4, "{jobs:?}");
    for (earlier, later) in [("prepare", "train"), ("train", "evaluate")] {
        for (_, made, _) in of(&jobs, later) {
            for (name, _, ended) in of(&jobs, earlier) {
                // Kubernetes keeps these times to the second.
                ensure!(
                    !ended.is_empty() && ended <= made,
                    "{later} before {name} had ended: {jobs:?}"
                );
            }
        }
    }
    Ok(())
}

async fn what_depends_on_others_runs_when_they_are_ready_or_done(scene: Scene) -> Result<()> {
    let jobs = completes(&scene, "depends-on").await?;
    let made = |part: &str| of(&jobs, part).map(|(_, made, _)| made.clone()).max();
    let ended = |part: &str| of(&jobs, part).map(|(_, _, ended)| ended.clone()).max();
    ensure!(made("driver") <= made("workers"), "{jobs:?}");
    ensure!(ended("workers") <= made("report"), "{jobs:?}");
    // The driver never ends by itself, and was deleted when the report was done.
    Ok(())
}

async fn a_cycle_is_refused(scene: Scene) -> Result<()> {
    let manifest = std::fs::read_to_string(format!("{EXAMPLES}/depends-on.yaml"))?;
    let cyclic = manifest.replace(
        "- name: driver\n          status",
        "- name: workers\n          status",
    );
    ensure!(cyclic != manifest);
    let Err(error) = scene
        .namespace
        .kubectl_with(&["apply", "--filename", "-"], &cyclic)
        .await
    else {
        anyhow::bail!("kubectl takes it")
    };
    let error = format!("{error:#}");
    ensure!(
        error.contains("replicatedJob: workers cannot depend on replicatedJob: workers"),
        "{error}"
    );
    Ok(())
}
