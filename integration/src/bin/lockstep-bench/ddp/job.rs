//! The training job in the cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::container_id;
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Group, Namespace, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::sleep;

use super::log::{self, Event, Line};

/// Ranks of the jobs with PyTorch.
pub(crate) const WORKERS: usize = 4;
/// The program of a rank, as its command line names it.
const PROGRAM: &str = "/app/train.py";
/// How long a start or a restart may take: four ranks that import PyTorch on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// How long a part of the training may take on a busy machine.
const TRAINS: Duration = Duration::from_secs(900);
/// How long it may take until all standbys are ready. Each leaves the processor to others for three
/// quarters of the time.
const WARM: Duration = Duration::from_secs(600);
/// A standby that is ready computes less than this, on average, in this time.
const AT_REST: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_secs(5);
/// Folder of the node, in which checkpoints outlive pods.
const VOLUMES: &str = "/var/lib/lockstep-bench";

/// An example, and what its job is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Example {
    /// Its folder, and the name of its JobSet.
    pub(crate) name: &'static str,
    /// Pods of the job.
    pub(crate) pods: usize,
    /// Ranks in each pod, which torchrun starts if there are several.
    pub(crate) ranks: usize,
    /// What is replaced in its manifests.
    pub(crate) adapted: &'static [(&'static str, &'static str)],
}

impl Example {
    /// A job of four pods with one rank each.
    pub(crate) const fn script(name: &'static str) -> Self {
        Self {
            name,
            pods: WORKERS,
            ranks: 1,
            adapted: &[],
        }
    }

    /// Ranks of all pods.
    const fn world(self) -> usize {
        self.pods * self.ranks
    }

    /// Standbys of each pod: also one of torchrun.
    pub(crate) const fn standbys(self) -> usize {
        if self.ranks > 1 { self.ranks + 1 } else { 1 }
    }
}

/// The job, and the log of its rank 0 so far.
pub(crate) struct Training {
    example: Example,
    group: Group,
    lines: Vec<Line>,
}

/// An observed restart.
pub(crate) struct Restart {
    /// The (first) rank of the worker that was killed, and when, in seconds since the Unix epoch.
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
    /// Number of processes that were standbys before.
    pub(crate) warm: usize,
}

impl Training {
    /// Applies the example in `folder`, with a volume on the node for its claim.
    pub(crate) async fn start(namespace: &Namespace, folder: &Path, example: Example) -> Result<Self> {
        let name = example.name;
        // The folder is on one node, so the volume is bound to that node.
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name(1)]});
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume(namespace, name)},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
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
        let mut manifests = namespace.kubectl(&["kustomize", folder]).await?;
        for (old, new) in example.adapted {
            ensure!(manifests.contains(old), "{name} has no {old}");
            manifests = manifests.replace(old, new);
        }
        namespace
            .kubectl_with(&["apply", "--filename", "-"], &manifests)
            .await?;
        let group = Group {
            namespace: namespace.clone(),
            name: name.to_owned(),
        };
        Ok(Self {
            example,
            group,
            lines: Vec::new(),
        })
    }

    /// The log of rank 0, as far as it was read.
    pub(in crate::ddp) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Waits until rank 0 has done this step.
    pub(crate) async fn reaches(&mut self, step: u64) -> Result<()> {
        self.until(&format!("step {step}"), |lines| {
            log::last_step(lines).is_some_and(|last| last >= step)
        })
        .await
    }

    /// Waits until rank 0 has saved its state.
    pub(crate) async fn saves(&mut self) -> Result<()> {
        self.until("a checkpoint", |lines| {
            log::steps_of(lines, Event::Checkpoint).next().is_some()
        })
        .await
    }

    /// The interpreters of all pods: ranks and standbys.
    pub(crate) async fn processes(&self) -> Result<Vec<Process>> {
        let mut found = Vec::new();
        for pod in 0..self.example.pods {
            let id = container_id(&self.pod(pod).await?, CONTAINER)?;
            let interpreters = process::in_container(&id)
                .into_iter()
                .filter(|process| is_interpreter(*process));
            found.extend(interpreters);
        }
        Ok(found)
    }

    /// How many steps the job does in a second, watched for a time.
    pub(crate) async fn steps_per_second(&self, time: Duration) -> Result<f64> {
        let start = now()?;
        sleep(time).await;
        let lines = self.log(0).await?;
        let saved: Vec<(f64, u64)> = lines
            .iter()
            .filter(|line| line.event == Some(Event::Checkpoint) && line.time >= start)
            .filter_map(|line| Some((line.time, line.step?)))
            .collect();
        let (first, last) = saved
            .first()
            .zip(saved.last())
            .context("no checkpoint meanwhile")?;
        ensure!(last.1 > first.1, "only one checkpoint meanwhile");
        Ok((last.1 - first.1) as f64 / (last.0 - first.0))
    }

    /// Waits until all steps are done, and the JobSet is complete.
    pub(in crate::ddp) async fn ends(&mut self) -> Result<()> {
        self.until("the end", |lines| {
            log::steps_of(lines, Event::Done).next().is_some()
        })
        .await?;
        self.group.condition("Completed", LIMIT).await.map(drop)
    }

    async fn until(&mut self, what: &str, is_there: impl Fn(&[Line]) -> bool) -> Result<()> {
        let what = format!("rank 0 of {} reaches {what}", self.group.name);
        let lines = eventually(&what, TRAINS, async || {
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

    /// Kills the worker of a pod, and waits until every rank has done a step again.
    ///
    /// If a rank ended, torchrun would exit by itself, and Lockstep would replace the pod if that
    /// happens soon after a restart.
    pub(crate) async fn restart(&mut self, pod: usize) -> Result<Restart> {
        let before = self.place().await?;
        let standbys = self.standbys().await?;
        let victim = self.worker(pod).await?;
        self.note(self.log(0).await?);
        let killed = now()?;
        victim.signal(Signal::SIGKILL)?;
        let mut restart = self.observe(pod, killed, before).await?;
        let running = self.processes().await?;
        restart.warm = running
            .iter()
            .filter(|process| standbys.contains(process))
            .count();
        Ok(restart)
    }

    /// The process of a pod that has the command line of the worker, and is neither a standby nor a
    /// rank of another. Without an agent it is the container's first process.
    async fn worker(&self, pod: usize) -> Result<Process> {
        let id = container_id(&self.pod(pod).await?, CONTAINER)?;
        let init = process::init_of(&id).context("the container has no processes")?;
        let found = process::in_container(&id).into_iter().find(|process| {
            let args = process.args();
            let parent = process.status("PPid");
            let is_first = process.pid == init.pid;
            let child = parent
                .first()
                .is_some_and(|parent| *parent == init.pid.to_string());
            let launcher = args.iter().any(|word| word.ends_with("torchrun"));
            is_interpreter(*process)
                && (is_first || child)
                && !waits(*process)
                && launcher == (self.example.ranks > 1)
        });
        found.with_context(|| format!("no worker in pod {pod}"))
    }

    async fn observe(
        &mut self,
        pod: usize,
        killed: f64,
        before: (BTreeSet<String>, BTreeSet<String>),
    ) -> Result<Restart> {
        let (mut started, mut imported, mut stepped) = (killed, killed, killed);
        for rank in 0..self.example.world() {
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
            rank: pod * self.example.ranks,
            killed,
            started: Duration::try_from_secs_f64(started - killed)?,
            imported: Duration::try_from_secs_f64(imported - killed)?,
            stepped: Duration::try_from_secs_f64(stepped - killed)?,
            step_before,
            resumed,
            new_pods: new(&after.0, &before.0),
            new_containers: new(&after.1, &before.1),
            warm: 0,
        })
    }

    /// Waits until all standbys of all pods are ready: there are as many as processes, and while
    /// they rest for longer than they do between two imports, none of them computes.
    pub(crate) async fn standbys_are_ready(&self) -> Result<()> {
        let wanted = self.example.pods * self.example.standbys();
        eventually("all standbys are ready", WARM, async || {
            let standbys = self.standbys().await?;
            ensure!(
                standbys.len() == wanted,
                "there are {} of {wanted}",
                standbys.len()
            );
            let before = cpu_time(&standbys)?;
            sleep(REST).await;
            let computed = cpu_time(&standbys)?.saturating_sub(before);
            ensure!(
                computed < AT_REST * u32::try_from(wanted)?,
                "they compute: {computed:?}"
            );
            Ok(())
        })
        .await
    }

    /// Standbys of all pods.
    pub(crate) async fn standbys(&self) -> Result<Vec<Process>> {
        let mut found = self.processes().await?;
        found.retain(|process| waits(*process));
        Ok(found)
    }

    /// Ends standbys, if there are any already, so that the next restart is cold. While they
    /// import, they are left alone: the agent would not have them import that module again.
    pub(crate) async fn without_standbys(&self) -> Result<()> {
        if !self.standbys().await?.is_empty() {
            self.standbys_are_ready().await?;
        }
        for standby in self.standbys().await? {
            standby.signal(Signal::SIGKILL)?;
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

    /// The lines of a rank.
    async fn log(&self, rank: usize) -> Result<Vec<Line>> {
        let lines = log::parse(&self.text(rank / self.example.ranks).await?);
        Ok(lines.into_iter().filter(|line| line.rank == rank).collect())
    }

    async fn text(&self, pod: usize) -> Result<String> {
        let name = self.pod(pod).await?.metadata.name;
        self.group.logs(&name.context("a pod without a name")?).await
    }

    /// The pod with this index that is neither failed nor being deleted.
    async fn pod(&self, wanted: usize) -> Result<Pod> {
        let pod = self.group.pods().await?.into_iter().find(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let counts =
                pod.metadata.deletion_timestamp.is_none() && matches!(phase, Some("Running" | "Succeeded"));
            let labels = pod.metadata.labels.as_ref();
            let index = labels.and_then(|labels| labels.get("batch.kubernetes.io/job-completion-index"));
            counts && index.is_some_and(|index| *index == wanted.to_string())
        });
        pod.with_context(|| format!("no pod {wanted} runs"))
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

/// Time that the processes have computed so far.
pub(crate) fn cpu_time(processes: &[Process]) -> Result<Duration> {
    let time = |process: &Process| {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", process.pid))?;
        let nanos = text.split(' ').next().context("an empty schedstat")?;
        Ok(Duration::from_nanos(nanos.parse()?))
    };
    processes.iter().map(time).sum()
}

/// True for a process that has the command line of the program: also torchrun and standbys.
fn is_interpreter(process: Process) -> bool {
    let args = process.args();
    let python = |word: &String| {
        word.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("python"))
    };
    let agents = |word: &String| word.starts_with("/.lockstep/");
    args.first().is_some_and(|word| python(word) && !agents(word)) && args.iter().any(|word| word == PROGRAM)
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

/// The current time in seconds since the Unix epoch, as in the program's log.
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}
