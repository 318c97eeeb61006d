//! The training job in the cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::container_id;
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Group, Namespace, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use super::log::{self, Event, Line};

/// Workers of the job.
pub(crate) const WORKERS: usize = 4;
/// The command of a worker.
const COMMAND: [&str; 2] = ["python3", "/app/train.py"];
/// How long a start or a restart may take: four ranks that import PyTorch on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// Folder of the node, in which checkpoints outlive pods.
const VOLUMES: &str = "/var/lib/lockstep-bench";

/// The job, and the log of its rank 0 so far.
pub(crate) struct Training {
    group: Group,
    lines: Vec<Line>,
}

/// An observed restart.
pub(crate) struct Restart {
    /// The rank that was killed, and when, in seconds since the Unix epoch.
    pub(crate) rank: usize,
    pub(crate) killed: f64,
    /// From the kill until every rank's program ran again, had imported PyTorch, and had done a
    /// step.
    pub(crate) started: Duration,
    pub(crate) imported: Duration,
    pub(crate) stepped: Duration,
    /// The last step before the kill, and the number of steps in the checkpoint.
    pub(crate) step_before: u64,
    pub(crate) resumed: u64,
    /// Number of new pods and containers.
    pub(crate) new_pods: usize,
    pub(crate) new_containers: usize,
}

impl Training {
    /// Applies the example in `folder`, with a volume on the node for its claim.
    pub(crate) async fn start(namespace: &Namespace, folder: &Path, name: &str) -> Result<Self> {
        // The folder is on one node, so the volume is bound to that node.
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name(1)]});
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume(namespace, name)},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "claimRef": {"namespace": namespace.name, "name": format!("checkpoints-{name}")},
                "hostPath": {"path": format!("{VOLUMES}/{}/{name}", namespace.name), "type": "DirectoryOrCreate"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        });
        namespace
            .kubectl_with(&["create", "--filename", "-"], &volume.to_string())
            .await?;
        let folder = folder.join(name);
        let folder = folder.to_str().context("a path that is not UTF-8")?;
        namespace.kubectl(&["apply", "--kustomize", folder]).await?;
        let group = Group {
            namespace: namespace.clone(),
            name: name.to_owned(),
        };
        Ok(Self {
            group,
            lines: Vec::new(),
        })
    }

    /// The log of rank 0, as far as it was read.
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Waits until rank 0 has done this step.
    pub(crate) async fn reaches(&mut self, step: u64) -> Result<()> {
        self.until(&format!("step {step}"), |lines| {
            log::last_step(lines).is_some_and(|last| last >= step)
        })
        .await
    }

    /// Waits until all steps are done, and the JobSet is complete.
    pub(crate) async fn ends(&mut self) -> Result<()> {
        self.until("the end", |lines| {
            log::steps_of(lines, Event::Done).next().is_some()
        })
        .await?;
        self.group.condition("Completed", LIMIT).await.map(drop)
    }

    async fn until(&mut self, what: &str, is_there: impl Fn(&[Line]) -> bool) -> Result<()> {
        let what = format!("rank 0 of {} reaches {what}", self.group.name);
        let lines = eventually(&what, LIMIT, async || {
            let lines = self.log(0).await?;
            ensure!(is_there(&lines), "it is at {:?}", lines.last());
            Ok(lines)
        })
        .await?;
        self.note(lines);
        Ok(())
    }

    /// Appends new lines. The log of a new pod begins from the start.
    fn note(&mut self, lines: Vec<Line>) {
        let last = self.lines.last().map_or(0.0, |line| line.time);
        self.lines
            .extend(lines.into_iter().filter(|line| line.time > last));
    }

    /// Kills a rank, and waits until every rank has done a step again.
    pub(crate) async fn restart(&mut self, rank: usize) -> Result<Restart> {
        let before = self.place().await?;
        let old = process::running(&COMMAND);
        let victim = old
            .iter()
            .find(|process| process.env("RANK") == Some(rank.to_string()) && !waits(**process))
            .with_context(|| format!("no process of rank {rank}"))?;
        self.note(self.log(0).await?);
        let killed = now()?;
        victim.signal(Signal::SIGKILL)?;

        let (mut started, mut imported, mut stepped) = (killed, killed, killed);
        for rank in 0..WORKERS {
            let what = format!("rank {rank} of {} does a step again", self.group.name);
            let [start, import, step] = eventually(&what, LIMIT, async || {
                let lines = self.log(rank).await?;
                let run = log::started_after(&lines, killed).context("it was not started again")?;
                let first = log::first_step(run).context("no step yet")?;
                let time = |event| log::time_of(run, event).context("an event is missing");
                Ok([time(Event::Start)?, time(Event::Imported)?, first.time])
            })
            .await?;
            started = started.max(start);
            imported = imported.max(import);
            stepped = stepped.max(step);
        }

        let step_before = log::last_step(&self.lines).context("no step before the kill")?;
        let saved = log::steps_of(&self.lines, Event::Checkpoint)
            .last()
            .unwrap_or_default();
        self.note(self.log(0).await?);
        let run = log::started_after(&self.lines, killed).context("rank 0 was not started again")?;
        let resumed = log::steps_of(run, Event::Resumed)
            .next()
            .context("rank 0 did not resume from a checkpoint")?;
        // More steps may have been saved between the last poll and the kill.
        ensure!(
            resumed >= saved && saved > 0,
            "resumed at {resumed}; {saved} was saved"
        );
        let after = self.place().await?;
        let new = |after: &BTreeSet<String>, before: &BTreeSet<String>| after.difference(before).count();
        Ok(Restart {
            rank,
            killed,
            started: Duration::try_from_secs_f64(started - killed)?,
            imported: Duration::try_from_secs_f64(imported - killed)?,
            stepped: Duration::try_from_secs_f64(stepped - killed)?,
            step_before,
            resumed,
            new_pods: new(&after.0, &before.0),
            new_containers: new(&after.1, &before.1),
        })
    }

    /// Waits until every rank has had this many standbys that were ready.
    pub(crate) async fn standbys_are_ready(&self, count: u64) -> Result<()> {
        for rank in 0..WORKERS {
            eventually(&format!("rank {rank} has a standby"), LIMIT, async || {
                let log = self.text(rank).await?;
                let ready = log.matches("a standby is ready").count();
                ensure!(ready as u64 >= count, "it has had {ready}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Removes the job and its volume.
    pub(crate) async fn remove(&self) -> Result<()> {
        let namespace = &self.group.namespace;
        let jobset = ["delete", "jobset", &self.group.name, "--cascade=foreground"];
        namespace.kubectl(&jobset).await?;
        let volume = volume(namespace, &self.group.name);
        namespace
            .access
            .kubectl(&["delete", "persistentvolume", &volume, "--wait=false"], "")
            .await?;
        Ok(())
    }

    async fn log(&self, rank: usize) -> Result<Vec<Line>> {
        Ok(log::parse(&self.text(rank).await?))
    }

    /// The log of a rank's pod that is neither failed nor being deleted.
    async fn text(&self, rank: usize) -> Result<String> {
        let pod = self.group.pods().await?.into_iter().find_map(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let counts =
                pod.metadata.deletion_timestamp.is_none() && matches!(phase, Some("Running" | "Succeeded"));
            let labels = pod.metadata.labels.unwrap_or_default();
            let index = labels.get("batch.kubernetes.io/job-completion-index")?;
            (counts && *index == rank.to_string()).then_some(pod.metadata.name?)
        });
        let pod = pod.with_context(|| format!("no pod of rank {rank} runs"))?;
        self.group.logs(&pod).await
    }

    /// UIDs of the pods, and ids of their containers.
    async fn place(&self) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let pods = self.group.pods().await?;
        let containers = pods.iter().map(|pod| container_id(pod, CONTAINER));
        let containers = containers.collect::<Result<_>>()?;
        Ok((
            pods.into_iter().filter_map(|pod| pod.metadata.uid).collect(),
            containers,
        ))
    }
}

/// True for a standby: it is the first to go when memory is short.
fn waits(process: Process) -> bool {
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.pid));
    score.is_ok_and(|score| score.trim() == "1000")
}

/// The volume for the claim of a job.
fn volume(namespace: &Namespace, name: &str) -> String {
    format!("{}-{name}", namespace.name)
}

/// The present time in seconds since the Unix epoch, as in the program's log.
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}
