//! What standbys that are ready cost a running job: two jobs, one of them without standbys, run in
//! turn, while every process of the other is stopped (SIGSTOP).

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::harness::Namespace;
use lockstep_integration::harness::process::Process;
use lockstep_integration::progress::Progress;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::Results;
use crate::ddp::job::{Example, Training, cpu_time};

/// How long one job runs before the other does.
const WINDOW: Duration = Duration::from_secs(10);
/// What a job does at first in its window is not counted.
const SETTLE: Duration = Duration::from_secs(1);

/// The job without standbys is the one of this folder.
const WITHOUT: &str = "pytorch-ddp";
/// It logs as rarely as the other, and trains for as long.
const EQUAL: (&str, &str) = (
    "value: \"1500\"",
    "value: \"1000000\"\n              - name: LOG_EVERY\n                value: \"50\"",
);

/// Steps per second with standbys and without, in pairs.
pub(super) async fn measure(
    namespace: &Namespace,
    folder: &Path,
    example: Example,
    pairs: u32,
) -> Result<Results> {
    let progress = Progress::new();
    ensure!(
        example.adapted.is_empty() && example.ranks == 1 && example.pods > 1,
        "only for the script"
    );
    let without = Example {
        adapted: &[EQUAL],
        ..Example::script(WITHOUT)
    };
    let without = Training::start(namespace, folder, without).await?;
    let mut with = Training::start(namespace, folder, example).await?;
    with.reaches(100).await?;
    with.standbys_are_ready().await?;
    let jobs = [with, without];
    let mut rates = [Vec::new(), Vec::new()];
    let mut computed = Duration::ZERO;
    for pair in 0..pairs {
        // Each goes first in every other pair.
        for turn in 0..2 {
            let chosen = (pair + turn) as usize % 2;
            let (job, other) = if chosen == 0 {
                (&jobs[0], &jobs[1])
            } else {
                (&jobs[1], &jobs[0])
            };
            let stopped = Stopped::all(other.processes().await?)?;
            sleep(SETTLE).await;
            let standbys = job.standbys().await?;
            let before = cpu_time(&standbys)?;
            let rate = job.steps_per_second(WINDOW).await?;
            if chosen == 0 {
                computed += cpu_time(&standbys)?.saturating_sub(before);
            }
            drop(stopped);
            rates[chosen].push(rate);
        }
        if let [Some(with), Some(without)] = [rates[0].last(), rates[1].last()] {
            progress.say(format_args!(
                "pair {}: {with:.1} steps a second with standbys, {without:.1} without",
                pair + 1
            ));
        }
    }
    for job in &jobs {
        job.remove().await?;
    }
    let share = computed.as_secs_f64() / (WINDOW * pairs).as_secs_f64();
    Ok(summary(&rates, share))
}

/// Prints and returns what the pairs of rates come to. `share`: of a core, that the standbys took.
fn summary(rates: &[Vec<f64>; 2], share: f64) -> Results {
    let mut ratios: Vec<f64> = rates[0]
        .iter()
        .zip(&rates[1])
        .map(|(with, without)| with / without)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: usize| {
        ratios
            .get(share * (ratios.len() - 1) / 4)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "steps with standbys by those without: median {:.3} (quartiles {:.3} to {:.3}, {:.3} to {:.3} in all)",
        at(2),
        at(1),
        at(3),
        at(0),
        at(4)
    );
    println!("the standbys together took {:.2} % of one core", share * 100.0);
    [
        ("steps_with".to_owned(), json!(rates[0])),
        ("steps_without".to_owned(), json!(rates[1])),
        ("steps_ratio".to_owned(), json!(at(2))),
        ("standbys_share_of_a_core".to_owned(), json!(share)),
    ]
    .into_iter()
    .collect()
}

/// Processes that are stopped until this is dropped.
struct Stopped(Vec<Process>);

impl Stopped {
    fn all(processes: Vec<Process>) -> Result<Self> {
        let stopped = Self(processes);
        for process in &stopped.0 {
            process.signal(Signal::SIGSTOP)?;
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in &self.0 {
            // It may be gone, and then its job fails by itself.
            let _ = process.signal(Signal::SIGCONT);
        }
    }
}
