//! Numbers at the limit of admission and beyond it, and regular expressions that cost much.

use anyhow::Result;
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::{Value, json};

use super::{little, nowhere, replicas, suspended};
use crate::tenant::attacker::{Attacker, JOBSET};

/// The most Jobs and workers of a JobSet, as the threat model says.
const JOBS: i64 = 20_000;
const WORKERS: u32 = 100_000;
/// What refusals say. The second is upstream's, of a product that no 32 bits hold.
const TOO_MANY: &str = "a JobSet may have at most";
const PRODUCT: &str = "the product of replicas and parallelism must not exceed";
/// JobSets with patterns, and the patterns of each.
const PATTERNED: usize = 40;
const PATTERNS: usize = 100;
const TOO_COSTLY: &str = "onJobFailureMessagePatterns";

/// The largest JobSets, and larger ones.
pub(super) async fn numbers(attacker: &Attacker) -> Result<()> {
    for (jobs, workers, said) in [
        (i64::from(i32::MAX), 1, TOO_MANY),
        (JOBS + 1, 1, TOO_MANY),
        (60, WORKERS, TOO_MANY),
        (i64::from(i32::MAX), WORKERS, PRODUCT),
    ] {
        for manifest in both(jobs, workers) {
            let manifest = manifest.named(&attacker.unique("beyond"));
            attacker.must_fail(JOBSET, manifest.0, said).await?;
        }
    }
    for (jobs, workers) in [(1, WORKERS), (JOBS, 1), (1000, WORKERS / 1000)] {
        for manifest in both(jobs, workers) {
            let manifest = manifest.named(&attacker.unique("largest"));
            attacker.create(JOBSET, manifest.0).await?;
        }
    }
    attacker.rest().await;
    Ok(())
}

/// A JobSet of these numbers, suspended and not, that restarts in place and not. No node takes its
/// pods.
fn both(jobs: i64, workers: u32) -> [Manifest; 3] {
    let manifest = replicas(Manifest::new(workers, IDLE).pod(nowhere()), jobs);
    [
        suspended(manifest.clone()),
        manifest.clone(),
        suspended(manifest.strategy("Recreate")),
    ]
}

/// JobSets that fail again and again, and whose policies have to be asked each time.
pub(super) async fn patterns(attacker: &Attacker) -> Result<()> {
    let broken = (0..PATTERNS).map(|number| format!("({number}")).collect();
    let wide = vec![r"(?i)[!-\x{10ffff}]".repeat(50); PATTERNS];
    let large = (0..PATTERNS)
        .map(|number| format!(r"\pL{{{}}}", 300 + number))
        .collect();
    let many = vec!["exit code 1".to_owned(); PATTERNS + 1];
    for patterns in [broken, wide, large, many] {
        let manifest = failing(patterns).named(&attacker.unique("costly"));
        attacker.must_fail(JOBSET, manifest.0, TOO_COSTLY).await?;
    }
    attacker
        .flood(JOBSET, PATTERNED, |_| {
            failing(admitted()).named(&attacker.unique("patterns")).0
        })
        .await?;
    attacker.rest().await;
    Ok(())
}

/// Patterns that are as costly as admission lets them be, by and large.
fn admitted() -> Vec<String> {
    (0..PATTERNS)
        .map(|number| format!("(a|b|[c-y]){{1,9}}.*(z|[0-9]{{2}}).*{number}$"))
        .collect()
}

/// A JobSet with such a policy whose only worker fails at once.
fn failing(patterns: Vec<String>) -> Manifest {
    let mut manifest = Manifest::new(1, "exit 1")
        .strategy("Recreate")
        .max_restarts(i32::MAX as u32)
        .job(json!({"backoffLimit": 0}))
        .pod(json!({"restartPolicy": "Never"}))
        .container(json!({"resources": little()}));
    let rules: Value =
        json!([{"name": "r", "action": "FailJobSet", "onJobFailureMessagePatterns": patterns}]);
    manifest.0["spec"]["failurePolicy"]["rules"] = rules;
    manifest
}
