//! Measures restarts from outside: from the kill until new worker processes run.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;

use super::group::Worker;
use super::process::{self, Process};

/// Interval between two scans of `/proc`.
const PAUSE: Duration = Duration::from_millis(1);

/// Kills `victim` and measures until each of `workers` has a new process under the same agent.
///
/// # Errors
/// If that takes longer than `within`.
pub async fn kill_in_place(workers: Vec<Worker>, victim: Process, within: Duration) -> Result<Duration> {
    measure(victim, within, move || {
        let fresh = |worker: &Worker| worker.agent.worker().is_some_and(|now| now != worker.process);
        workers.iter().filter(|worker| fresh(worker)).count() == workers.len()
    })
    .await
}

/// Kills `victim` and measures until `count` processes run whose first arguments are `args`, none
/// of which is in `old`.
///
/// # Errors
/// If that takes longer than `within`.
pub async fn kill_and_find(
    args: Vec<String>,
    count: usize,
    old: Vec<Process>,
    victim: Process,
    within: Duration,
) -> Result<Duration> {
    measure(victim, within, move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        process::running(&args)
            .iter()
            .filter(|process| !old.contains(process))
            .count()
            >= count
    })
    .await
}

async fn measure(
    victim: Process,
    within: Duration,
    done: impl Fn() -> bool + Send + 'static,
) -> Result<Duration> {
    // On its own thread, so that the scans do not wait for other tasks.
    tokio::task::spawn_blocking(move || {
        // Taken before the kill: on a busy machine this thread may be preempted right after it.
        let start = Instant::now();
        victim.signal(Signal::SIGKILL)?;
        while !done() {
            if start.elapsed() > within {
                bail!("the workers do not all run again after {} s", within.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(start.elapsed())
    })
    .await?
}

/// The median.
pub fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The 90th percentile (nearest rank): the slowest of fewer than 10.
pub fn p90(times: &[Duration]) -> Duration {
    percentile(times, 90)
}

/// The 99th percentile (nearest rank): the slowest of fewer than 100.
pub fn p99(times: &[Duration]) -> Duration {
    percentile(times, 99)
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let times = |count: u64| (1..=count).rev().map(Duration::from_millis).collect::<Vec<_>>();
        for (count, middle, high) in [(1, 1, 1), (20, 11, 20), (100, 51, 99), (200, 101, 198)] {
            let times = times(count);
            assert_eq!(
                (median(&times), p99(&times)),
                (Duration::from_millis(middle), Duration::from_millis(high))
            );
        }
        assert_eq!((median(&[]), p99(&[])), (Duration::ZERO, Duration::ZERO));
    }
}
