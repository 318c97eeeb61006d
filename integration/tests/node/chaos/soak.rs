//! Many restarts, rollouts and rotations of the CA, and the resources of the product's processes
//! meanwhile.
//!
//! The first half of the restarts has rollouts and rotations of the CA, the second half has nothing
//! else. In the second half memory and open files of both parts must not grow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::Process;

use super::storm::{Storm, roll_out};
use super::{authority, setting};
use crate::support::{Case, Part, Product, Scene, case};

/// Restarts for each rollout, and for each rotation of the CA: 1,000 restarts have 20 and 5.
const ROLLOUT: u64 = 50;
const CHANGE: u64 = 200;
/// The growth of memory allowed in the second half, in percent and in KiB: the kernel counts in
/// pages, and allocators in larger pieces.
const GROWTH: (f64, f64) = (1.0, 256.0);
/// Fewer restarts than this prove nothing: at first programs grow to the size that they need.
const MEANINGFUL: u64 = 1000;

/// The case, if LOCKSTEP_SOAK_RESTARTS sets the number of restarts.
pub(super) fn cases() -> Vec<Case> {
    let Some(restarts) = setting("LOCKSTEP_SOAK_RESTARTS") else {
        return Vec::new();
    };
    vec![Case {
        limit: Duration::from_secs(300) + Duration::from_secs(4) * u32::try_from(restarts).expect("too many"),
        ..case!(many_restarts_rollouts_and_changes_of_the_authority alone)
    }]
}

/// Memory (KiB) and open files of a process.
#[derive(Debug, Clone, Copy)]
struct Sample {
    memory: f64,
    files: usize,
}

async fn many_restarts_rollouts_and_changes_of_the_authority(scene: Scene) -> Result<()> {
    let restarts = setting("LOCKSTEP_SOAK_RESTARTS").context("LOCKSTEP_SOAK_RESTARTS")?;
    let product = &scene.product;
    let (rollouts, changes) = (restarts.div_ceil(ROLLOUT), restarts.div_ceil(CHANGE));
    let mut storm = Storm::gather(&scene).await?;
    for rollout in 1..=rollouts {
        storm
            .during(Box::pin(roll_out(product, usize::try_from(rollout)?)))
            .await?;
        // Spreads them as evenly as possible.
        if rollout * changes / rollouts > (rollout - 1) * changes / rollouts {
            storm.during(Box::pin(authority::replace(product))).await?;
        }
        while storm.restarts() < restarts / 2 * rollout / rollouts {
            storm.blow().await?;
        }
    }
    println!(
        "     {} restarts, {rollouts} rollouts, {changes} changes of the authority",
        storm.restarts()
    );
    let parts = [Part::ControlPlane, Part::NodeDaemon(1)];
    let mut samples = [Vec::new(), Vec::new()];
    let first = storm.restarts();
    while storm.restarts() < restarts.max(first + restarts / 2) {
        storm.blow().await?;
        for (part, samples) in parts.iter().zip(&mut samples) {
            samples.push(sample(product, *part).await?);
        }
    }
    for (part, samples) in parts.iter().zip(&samples) {
        judge(*part, samples, restarts >= MEANINGFUL)?;
    }
    println!("     {} restarts in all", storm.restarts());
    Ok(())
}

async fn sample(product: &Product, part: Part) -> Result<Sample> {
    let process: Process = product.process(part).await?;
    let memory = process.status("VmRSS");
    let memory = memory.first().context("no VmRSS")?.parse()?;
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid))?.count();
    Ok(Sample { memory, files })
}

/// Compares the last quarter of the samples with the second.
fn judge(part: Part, samples: &[Sample], strictly: bool) -> Result<()> {
    let quarter = samples.len() / 4;
    ensure!(quarter > 0, "too few samples");
    let (early, late) = (
        &samples[quarter..2 * quarter],
        &samples[samples.len() - quarter..],
    );
    let median = |samples: &[Sample]| {
        let mut all: Vec<f64> = samples.iter().map(|sample| sample.memory).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let files = |samples: &[Sample]| {
        samples
            .iter()
            .map(|sample| sample.files)
            .max()
            .unwrap_or_default()
    };
    let (before, after) = (median(early), median(late));
    let grown = 100.0 * (after - before) / before;
    println!(
        "     {part:?}: {before:.0} KiB became {after:.0} KiB ({grown:+.2} %), {} open files became {}",
        files(early),
        files(late)
    );
    if !strictly {
        return Ok(());
    }
    ensure!(
        grown < GROWTH.0 || after - before < GROWTH.1,
        "{part:?} takes ever more memory"
    );
    ensure!(files(late) <= files(early), "{part:?} opens ever more files");
    Ok(())
}
