//! The state of a group between two rounds, and what must hold then.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::{Group, Process, Worker, eventually};

use super::fault::Move;

/// The script of every worker, which starts one child.
pub(super) const SCRIPT: &str =
    r#"echo "attempt $LOCKSTEP_RESTART_ATTEMPT"; sleep 1000001 & exec sleep 1000000"#;
const PROCESSES: usize = 2;
/// How long a group may take to run again: parts of the product may have to start first.
const AGAIN: Duration = Duration::from_secs(240);
/// How long the test watches a group that should be quiet.
const QUIET: Duration = Duration::from_millis(300);

/// A group at rest.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    pub(super) workers: Vec<Worker>,
    /// It equals the counted restarts: every restart here counts.
    pub(super) generation: u64,
}

/// The generation in the environment of a process.
pub(super) fn attempt(process: Process) -> Option<u64> {
    process.env("LOCKSTEP_RESTART_ATTEMPT")?.parse().ok()
}

impl Rest {
    /// Waits until all workers run at a generation within `generations`, and all parts agree.
    pub(super) async fn wait(
        group: &Group,
        count: usize,
        generations: RangeInclusive<u64>,
        max_restarts: u64,
    ) -> Result<Self> {
        let what = format!("{} is at rest at {generations:?}", group.name);
        let rest = eventually(&what, AGAIN, async || {
            let status = group.status().await?;
            let state = &status["inPlaceRestart"];
            let number = |key: &str| state[key].as_u64().unwrap_or_default();
            let (generation, released) = (number("generation"), number("released"));
            ensure!(state["phase"] == "InSync", "{status}");
            ensure!(generation >= *generations.start(), "{status}");
            let (workers, others) = group.workers().await?;
            ensure!(others.is_empty(), "{}", others.join("; "));
            ensure!(workers.len() == count, "{} run", workers.len());
            for worker in &workers {
                let (pod, attempt) = (&worker.place.pod, worker.attempt);
                ensure!(attempt == generation, "{pod} is at {attempt}, not {generation}");
            }
            ensure!(released == generation, "{status}");
            Ok((Self { workers, generation }, status))
        });
        let (rest, status) = rest.await?;
        ensure!(
            generations.contains(&rest.generation),
            "the generation is not within {generations:?}: {status}"
        );
        let restarts = status["inPlaceRestart"]["restarts"].as_u64().unwrap_or_default();
        ensure!(
            restarts == rest.generation,
            "the count of restarts is not the generation: {status}"
        );
        ensure!(restarts <= max_restarts, "more than {max_restarts}: {status}");
        let recreations = status["restarts"].as_u64().unwrap_or_default();
        ensure!(recreations == 0, "the Jobs were recreated: {status}");
        rest.ensure_processes().await?;
        Ok(rest)
    }

    /// Checks that every process of the containers is of this generation, and that no process is
    /// missing.
    async fn ensure_processes(&self) -> Result<()> {
        for worker in &self.workers {
            let pod = &worker.place.pod;
            // During an exec a process has no environment for a moment.
            let tree = eventually("the worker has its child", AGAIN, async || {
                let tree = worker.tree();
                ensure!(tree.len() == PROCESSES, "{pod} has {tree:?}");
                let attempts = tree.into_iter().map(|process| {
                    let attempt = attempt(process);
                    Ok((process, attempt.with_context(|| format!("{process:?} has none"))?))
                });
                attempts.collect::<Result<Vec<_>>>()
            });
            for (process, attempt) in tree.await? {
                ensure!(
                    attempt == self.generation,
                    "{process:?} of {pod} is of {attempt}, not {}",
                    self.generation
                );
            }
        }
        Ok(())
    }

    /// Checks that each worker is in its place, except those whose container or pod had to end, and
    /// that no process is an earlier one.
    pub(super) fn ensure_places(&self, before: &Self, moves: &[Move]) -> Result<()> {
        for (index, (old, new)) in before.workers.iter().zip(&self.workers).enumerate() {
            let container = moves
                .iter()
                .any(|change| matches!(change, Move::Container(moved) if *moved == index));
            let pod = moves
                .iter()
                .any(|change| matches!(change, Move::Pod(moved) if *moved == index));
            let (from, to) = (&old.place, &new.place);
            let right = if pod {
                from.uid != to.uid && from.index == to.index
            } else if container {
                let same_pod = from.uid == to.uid && from.pod == to.pod;
                same_pod && from.container != to.container && to.restarts == from.restarts + 1
            } else {
                from == to && old.agent == new.agent
            };
            ensure!(right, "{moves:?} came of {old:#?} with {new:#?}");
            ensure!(!old.process.is_alive(), "{:?} outlived the restart", old.process);
        }
        Ok(())
    }

    /// Checks that nothing happens to the group for a while.
    pub(super) async fn ensure_quiet(&self, group: &Group) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < QUIET {
            for worker in &self.workers {
                ensure!(
                    worker.agent.worker() == Some(worker.process),
                    "the worker of {} was restarted for nothing",
                    worker.place.pod
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.ensure_unchanged(group).await
    }

    /// Checks that the same workers run as before.
    pub(super) async fn ensure_unchanged(&self, group: &Group) -> Result<()> {
        let (now, others) = group.workers().await?;
        ensure!(others.is_empty(), "{}", others.join("; "));
        ensure!(
            now == self.workers,
            "healthy workers were touched: {:#?} became {now:#?}",
            self.workers
        );
        Ok(())
    }
}

/// The attempts in the log of each container.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// The last attempt of each worker's earlier containers, by place in the group.
    earlier: BTreeMap<usize, (String, u64)>,
}

impl Logs {
    /// Checks that each worker logs each attempt at most once and in order, and that the present
    /// one is the last.
    pub(super) async fn check(&mut self, group: &Group, rest: &Rest) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(group.namespace.access.client.clone(), &group.namespace.name);
        let params = LogParams {
            container: Some(CONTAINER.to_owned()),
            ..LogParams::default()
        };
        for (index, worker) in rest.workers.iter().enumerate() {
            let pod = &worker.place.pod;
            let attempts = eventually(&format!("{pod} logs its attempt"), AGAIN, async || {
                let log = pods.logs(pod, &params).await?;
                // The agent has lines of its own.
                let attempts = log.lines().filter_map(|line| line.strip_prefix("attempt "));
                let attempts: Vec<u64> = attempts.map(str::parse).collect::<Result<_, _>>()?;
                ensure!(attempts.last() == Some(&rest.generation), "the log is {log:?}");
                Ok(attempts)
            })
            .await?;
            ensure!(
                attempts.windows(2).all(|pair| pair[0] < pair[1]),
                "{pod} logs {attempts:?}"
            );
            let container = &worker.place.container;
            if let Some((earlier, last)) = self.earlier.get(&index)
                && earlier != container
            {
                ensure!(
                    attempts.first() > Some(last),
                    "{pod} logs {attempts:?}, after {last} in an earlier container"
                );
            }
            self.earlier.insert(index, (container.clone(), rest.generation));
        }
        Ok(())
    }
}
