//! Constantly observes a group's workers in the process table.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lockstep_integration::harness::{Process, Worker};
use tokio::task::JoinHandle;

use super::state::attempt;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// A watch that runs until it is ended or dropped.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Watch {
    /// Starts the watch.
    pub(super) fn over(workers: &[Worker]) -> Self {
        let agents: Vec<Process> = workers.iter().map(|worker| worker.agent).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stop);
        let thread = tokio::task::spawn_blocking(move || {
            let mut latest = HashMap::new();
            while !over.load(Ordering::Relaxed) {
                look(&agents, &mut latest)?;
                std::thread::sleep(PAUSE);
            }
            Ok(())
        });
        Self { stop, thread }
    }

    /// Ends the watch, and fails if it has seen workers of two generations at once, or a worker
    /// that went back to an earlier one.
    pub(super) async fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        (&mut self.thread).await?
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(agents: &[Process], latest: &mut HashMap<Process, u64>) -> Result<()> {
    let seen = agents.iter().filter_map(|agent| {
        let worker = agent.worker()?;
        Some((*agent, worker, attempt(worker)?))
    });
    let seen: Vec<_> = seen.collect();
    for (agent, _, attempt) in &seen {
        let before = latest.insert(*agent, *attempt).unwrap_or_default();
        ensure!(
            before <= *attempt,
            "the agent {agent:?} went back from attempt {before} to {attempt}"
        );
    }
    let Some(newest) = seen.iter().map(|(.., attempt)| *attempt).max() else {
        return Ok(());
    };
    // The newest has run already, so an older process that still lives has lived beside it.
    match seen
        .iter()
        .find(|(_, worker, attempt)| *attempt < newest && worker.is_alive())
    {
        Some((_, worker, attempt)) => Err(anyhow!(
            "{worker:?} at attempt {attempt} still ran when another worker ran at {newest}"
        )),
        None => Ok(()),
    }
}
