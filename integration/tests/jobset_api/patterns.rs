//! Patterns of failure policies that would use more memory or time than the control plane has.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::control_plane::get;
use crate::fixture::{Case, case};
use crate::scene::{Scene, jobset, replicated_job};
use crate::webhooks::{ensure_invalid, setup};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(patterns_beyond_the_budget_are_refused_with_their_field),
        case!(patterns_that_no_webhook_has_seen_match_nothing_and_hold_nobody_up),
    ]
}

/// A JobSet with these patterns in a rule that would fail it.
fn stating(patterns: Vec<String>) -> Value {
    jobset(json!({
        "failurePolicy": {"maxRestarts": 1, "rules": [
            {"name": "r", "action": "FailJobSet", "onJobFailureMessagePatterns": patterns},
        ]},
        "replicatedJobs": [replicated_job("a", 1)],
    }))
}

/// Each is a few bytes, and takes megabytes.
fn large() -> Vec<String> {
    (0..600)
        .map(|index| format!(r"\pL{{{}}}", 100 + index % 300))
        .collect()
}

/// Invalid regular expressions, all different.
fn broken() -> Vec<String> {
    (0..15_000).map(|index| format!("({index}")).collect()
}

/// Each names a million characters, all of which have two forms.
fn wide() -> Vec<String> {
    vec![r"(?i)[!-\x{10ffff}]".repeat(50); 300]
}

async fn patterns_beyond_the_budget_are_refused_with_their_field(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    for patterns in [large(), broken(), wide()] {
        ensure_invalid(
            scene.create(stating(patterns)).await,
            "spec.failurePolicy.rules[0].onJobFailureMessagePatterns[0]: ",
        )?;
    }
    let many = vec!["exit code 1".to_owned(); 101];
    let hundredth = "spec.failurePolicy.rules[0].onJobFailureMessagePatterns[100]: ";
    ensure_invalid(scene.create(stating(many)).await, hundredth)
}

/// The start time of the process, and its memory.
async fn process(scene: &Scene) -> Result<(String, f64)> {
    let metrics = scene.control_plane().metrics().await?;
    let value = |name: &str| {
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(str::to_owned).with_context(|| format!("no {name}"))
    };
    let memory = value("process_resident_memory_bytes")?;
    Ok((value("process_start_time_seconds")?, memory.parse()?))
}

async fn patterns_that_no_webhook_has_seen_match_nothing_and_hold_nobody_up(scene: Scene) -> Result<()> {
    let (start, before) = process(&scene).await?;
    for patterns in [large(), broken(), wide()] {
        let hostile = scene.another().await?;
        hostile.create(stating(patterns)).await?;
        hostile.until_jobs(&["js-a-0"], 0).await?;
        hostile.pods_become("js-a-0", "Failed").await?;
        // Nothing matches: the default action applies, and an event tells the user why.
        hostile
            .until_condition("RestartingJobSet", "True", "DefaultFailurePolicy")
            .await?;
        let note = hostile.until_event("InvalidPattern").await?;
        ensure!(
            note.contains("spec.failurePolicy.rules[0].onJobFailureMessagePatterns[0]: "),
            "{note}"
        );
    }
    // Its neighbour goes on.
    scene.create(stating(vec!["limit$".to_owned()])).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Failed").await?;
    scene
        .until_condition("Failed", "True", "FailJobSetFailurePolicyAction")
        .await?;
    let (since, after) = process(&scene).await?;
    ensure!(since == start, "the control plane was started again");
    // Other cases use some memory meanwhile.
    ensure!(after < before + 200e6, "{before} and then {after} bytes");
    let alive = get(scene.control_plane().health_address(), "/healthz").await?;
    ensure!(alive.contains(" 200 "), "{alive}");
    Ok(())
}
