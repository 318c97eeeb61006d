//! The victim: a group on two nodes that restarts in place. One of its workers is killed every few
//! seconds, and nothing else may restart it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::places;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker, eventually, stopwatch};
use tokio::time::{MissedTickBehavior, interval};

use super::ledger::{Ledger, Timed};
use crate::chaos::{long_suffering, spread};
use crate::support::Scene;

const WORKERS: usize = 4;
/// The time between two kills, unless a restart takes longer.
const PACE: Duration = Duration::from_secs(10);
/// When the case no longer waits for a restart. What a restart may take is judged in the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(900);
/// More restarts than there are kills.
const ENOUGH: u32 = 1_000_000;

/// The group, and its workers as they were seen last.
pub(super) struct Neighbour {
    pub(super) group: Group,
    workers: Vec<Worker>,
    kills: u64,
    ledger: Arc<Ledger>,
}

impl Neighbour {
    /// Creates the group in a namespace of its own, and waits until it runs on two nodes.
    pub(super) async fn settle(scene: &Scene, ledger: Arc<Ledger>) -> Result<Self> {
        let namespace = scene.access().namespace("alice").await?;
        let manifest = Manifest::new(u32::try_from(WORKERS)?, IDLE);
        let manifest = spread(long_suffering(manifest, ENOUGH));
        let group = Group::apply(&namespace, &manifest).await?;
        let workers = group.running(WORKERS).await?;
        let nodes: BTreeSet<&str> = workers.iter().map(|worker| worker.place.node.as_str()).collect();
        ensure!(nodes.len() == 2, "the workers are on {nodes:?}");
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        Ok(Self {
            group,
            workers,
            kills: 0,
            ledger,
        })
    }

    /// Kills one worker after the other until the case ends. Then the status must count the kills.
    pub(super) async fn suffer(mut self) -> Result<()> {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.ledger.goes_on() {
            pace.tick().await;
            let runs = async {
                self.is_undisturbed().await?;
                self.kill().await
            };
            if let Err(error) = runs.await {
                self.ledger
                    .complain(format!("the neighbour does not run again: {error:#}"));
                break;
            }
        }
        let counted = eventually("the neighbour's status counts the kills", PATIENCE, async || {
            let status = self.group.status().await?;
            let counted = status["inPlaceRestart"]["restarts"].as_u64().unwrap_or(0);
            ensure!(counted >= self.kills, "{counted} of {}", self.kills);
            Ok(counted)
        })
        .await;
        if let Err(error) = &counted {
            self.ledger.complain(format!("{error:#}"));
        }
        self.ledger.settle(self.kills, counted.ok());
        Ok(())
    }

    /// The attempt of the workers as they were seen last.
    fn attempt(&self) -> u64 {
        self.workers.first().map_or(0, |worker| worker.attempt)
    }

    /// Complains if a worker is another one than was seen last.
    async fn is_undisturbed(&mut self) -> Result<()> {
        let same = |worker: &Worker| worker.agent.worker() == Some(worker.process);
        if self.workers.iter().all(same) {
            return Ok(());
        }
        let before = self.attempt();
        self.look(before).await?;
        let now = self.attempt();
        self.ledger.complain(format!(
            "the neighbour went from attempt {before} to {now} without a kill"
        ));
        Ok(())
    }

    /// Kills a worker, and waits until all run again.
    async fn kill(&mut self) -> Result<()> {
        let index = usize::try_from(self.kills)? % WORKERS;
        let victim = self.workers.get(index).context("no such worker")?.process;
        let (at, before) = (self.ledger.elapsed(), self.workers.clone());
        self.kills += 1;
        let took = stopwatch::kill_in_place(before.clone(), victim, PATIENCE).await;
        let took = took.inspect_err(|_| self.ledger.restarted(Timed { at, took: PATIENCE }))?;
        self.ledger.restarted(Timed { at, took });
        let expected = self.attempt() + 1;
        self.look(expected).await?;
        if self.attempt() != expected {
            let now = self.attempt();
            self.ledger
                .complain(format!("the neighbour is at attempt {now} instead of {expected}"));
        }
        if places(&before) != places(&self.workers) {
            let (before, after) = (places(&before), places(&self.workers));
            self.ledger
                .complain(format!("the neighbour moved: {before:?} became {after:?}"));
        }
        Ok(())
    }

    /// Waits until all run at the same attempt, which is at least this one.
    async fn look(&mut self, least: u64) -> Result<()> {
        self.workers = eventually(&format!("all run at attempt {least}"), PATIENCE, async || {
            let (workers, others) = self.group.workers().await?;
            ensure!(others.is_empty(), "{}", others.join("; "));
            let attempts: Vec<u64> = workers.iter().map(|worker| worker.attempt).collect();
            let same = attempts.iter().all(|attempt| Some(attempt) == attempts.first());
            let all = same && workers.len() == WORKERS && attempts[0] >= least;
            ensure!(all, "their attempts are {attempts:?}");
            Ok(workers)
        })
        .await?;
        Ok(())
    }
}
