//! The example job in the cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use lockstep_integration::harness::group::{self, START, container_status};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Group, Namespace, eventually, stopwatch};
use serde_json::Value;

/// Workers of the job.
pub(crate) const WORKERS: usize = 4;
/// The command of a worker.
const COMMAND: [&str; 2] = ["python3", "/app/ring.py"];
/// Time limit for a restart.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The job.
pub(crate) struct Ring(Group);

/// An observed restart.
pub(crate) struct Restart {
    /// The rank that was killed, and its pod.
    pub(crate) rank: usize,
    pub(crate) pod: String,
    /// When it was killed.
    pub(crate) killed: Timestamp,
    /// From the kill until new processes of all workers existed.
    pub(crate) fresh: Duration,
    /// When all ranks were connected again.
    pub(crate) ring_up: Timestamp,
    /// The step at which they resumed, and the last one before the kill.
    pub(crate) step: u64,
    pub(crate) step_before: u64,
    /// Number of new pods and containers.
    pub(crate) new_pods: usize,
    pub(crate) new_containers: usize,
    /// The timeline in the control plane's event, for a restart in place.
    pub(crate) timeline: Option<Value>,
}

/// The pod UIDs and container ids of the job.
struct PodIds {
    pods: BTreeSet<String>,
    containers: BTreeSet<String>,
}

impl Ring {
    pub(crate) fn new(namespace: &Namespace, name: &str) -> Self {
        Self(Group {
            namespace: namespace.clone(),
            name: name.to_owned(),
        })
    }

    pub(crate) async fn apply(&self, manifest: &Path) -> Result<()> {
        let path = manifest.to_str().context("a path that is not UTF-8")?;
        self.0.namespace.kubectl(&["apply", "--filename", path]).await?;
        Ok(())
    }

    /// Waits until all ranks are past the first step of this attempt.
    pub(crate) async fn runs(&self) -> Result<()> {
        eventually("the ring runs", START, async || {
            for rank in 0..WORKERS {
                let line = self.last_line(rank).await?;
                ensure!(line.contains("sum="), "rank {rank} says {line:?}");
            }
            ensure!(self.processes().len() == WORKERS, "not {WORKERS} processes");
            Ok(())
        })
        .await
    }

    /// Removes the job and waits until all its processes have ended.
    pub(crate) async fn delete(&self) -> Result<()> {
        let jobset = format!("jobset/{}", self.0.name);
        self.0
            .namespace
            .kubectl(&["delete", &jobset, "--wait=false"])
            .await?;
        eventually("the workers stop", TIMEOUT, async || {
            ensure!(self.processes().is_empty(), "some still run");
            Ok(())
        })
        .await
    }

    /// The last line that a rank has logged.
    pub(crate) async fn last_line(&self, rank: usize) -> Result<String> {
        let log = self.log(rank, &["--tail", "1"]).await?;
        Ok(log.lines().last().unwrap_or_default().to_owned())
    }

    /// Kills a rank and waits until the ring is up again.
    pub(crate) async fn restart(&self, rank: usize) -> Result<Restart> {
        let before = self.pod_ids().await?;
        let attempt = self.generation().await?;
        let step_before = step(&self.last_line(rank).await?).context("no step in the log")?;
        let old = self.processes();
        let victim = old
            .iter()
            .find(|process| process.env("JOB_COMPLETION_INDEX") == Some(rank.to_string()))
            .with_context(|| format!("no process of rank {rank}"))?;
        let pod = self.pod(rank).await?;
        let command = COMMAND.map(str::to_owned).to_vec();

        let killed = Timestamp::now();
        let fresh = stopwatch::kill_and_find(command, WORKERS, old.clone(), *victim, TIMEOUT).await?;
        let (ring_up, step) = self.ring_up(killed).await?;
        let after = self.pod_ids().await?;
        Ok(Restart {
            rank,
            pod,
            killed,
            fresh,
            ring_up,
            step,
            step_before,
            new_pods: after.pods.difference(&before.pods).count(),
            new_containers: after.containers.difference(&before.containers).count(),
            timeline: match attempt {
                Some(attempt) => Some(self.timeline(attempt + 1).await?),
                None => None,
            },
        })
    }

    /// The processes of the workers, without agents and children that are not workers yet.
    fn processes(&self) -> Vec<Process> {
        process::running(&COMMAND)
    }

    /// Waits until rank 0 logs after `since` that the ring is up. Returns the time and the step.
    async fn ring_up(&self, since: Timestamp) -> Result<(Timestamp, u64)> {
        eventually("the ring is up again", TIMEOUT, async || {
            let log = self
                .log(0, &["--timestamps", "--since-time", &since.to_string()])
                .await?;
            // The API server accepts only whole seconds.
            log.lines()
                .filter(|line| line.contains("ring of"))
                .filter_map(|line| {
                    let (time, text) = line.split_once(' ')?;
                    Some((time.parse::<Timestamp>().ok()?, step(text)?))
                })
                .find(|(time, _)| *time > since)
                .context("rank 0 has not logged it")
        })
        .await
    }

    async fn log(&self, rank: usize, options: &[&str]) -> Result<String> {
        let pod = self.pod(rank).await?;
        let mut args = vec!["logs", &pod, "--container", CONTAINER];
        args.extend(options);
        self.0.namespace.kubectl(&args).await
    }

    /// The name of a rank's pod that is neither failed nor being deleted.
    async fn pod(&self, rank: usize) -> Result<String> {
        let name = self.0.pods().await?.into_iter().find_map(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let lives = pod.metadata.deletion_timestamp.is_none() && phase == Some("Running");
            let labels = pod.metadata.labels.unwrap_or_default();
            let index = labels.get("batch.kubernetes.io/job-completion-index")?;
            (lives && *index == rank.to_string()).then_some(pod.metadata.name?)
        });
        name.with_context(|| format!("no pod of rank {rank} runs"))
    }

    async fn pod_ids(&self) -> Result<PodIds> {
        let pods = self.0.pods().await?;
        let containers = pods
            .iter()
            .filter(|pod| container_status(pod, CONTAINER).is_some())
            .filter_map(|pod| group::container_id(pod, CONTAINER).ok())
            .collect();
        Ok(PodIds {
            pods: pods.into_iter().filter_map(|pod| pod.metadata.uid).collect(),
            containers,
        })
    }

    /// The generation of a job that restarts in place.
    async fn generation(&self) -> Result<Option<i64>> {
        let status = self.0.status().await?;
        let in_place = status.get("inPlaceRestart").filter(|status| status.is_object());
        Ok(in_place.map(|status| status["generation"].as_i64().unwrap_or_default()))
    }

    /// The timeline in the event of the restart to this generation.
    async fn timeline(&self, generation: i64) -> Result<Value> {
        eventually("the event of the restart", TIMEOUT, async || {
            self.0
                .events("RestartedInPlace")
                .await?
                .into_iter()
                .filter_map(|event| {
                    let annotations = event.metadata.annotations?;
                    serde_json::from_str::<Value>(annotations.get("lockstep.dev/timeline")?).ok()
                })
                .find(|timeline| timeline["generation"] == generation)
                .context("there is none")
        })
        .await
    }
}

/// The number after `step` in a line of the job's log.
fn step(line: &str) -> Option<u64> {
    line.split_once("step ")?.1.split(' ').next()?.trim().parse().ok()
}
