//! The workloads of hollow nodes: a simulated worker for each pod that restarts in place, and a
//! count of the pods of each recreation.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use lockstep_api::labels;
use lockstep_node_daemon::pods::{InPlacePod, Metadata, recognise};
use lockstep_node_daemon::worker::driver::Handle;
use lockstep_node_daemon::worker::facts::Input;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::message::BenchEvent;
use crate::tally::Tally;
use crate::worker::{Orders, Worker, WorkerContainer};

/// A pod whose worker runs, or that its kubelet reports as running.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) node: String,
    /// Makes the worker fail.
    failure: Arc<Notify>,
}

impl Member {
    pub(super) fn fail(&self) {
        self.failure.notify_one();
    }
}

/// All pods of one JobSet, by UID.
type Members = Arc<Mutex<BTreeMap<String, Member>>>;

/// The task that starts and ends workers as pods come and go.
pub(super) struct Crew {
    members: Members,
    task: JoinHandle<()>,
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Crew {
    /// Starts the task for a JobSet of this many pods on nodes with these daemons. It reports when
    /// the last worker runs a generation. For a JobSet that is recreated, a recreation counts as a
    /// generation.
    pub(super) fn start(
        pods: Api<Pod>,
        daemons: HashMap<String, Handle>,
        count: usize,
        say: impl Fn(BenchEvent) + Clone + Send + Sync + 'static,
    ) -> Self {
        let members = Members::default();
        let play = Play {
            daemons,
            members: Arc::clone(&members),
            recreated: Tally::new(0, count, say.clone()),
            tally: Arc::new(Tally::new(0, count, say)),
        };
        let task = tokio::spawn(async move {
            if let Err(error) = play.run(pods).await {
                eprintln!("simulated workers: {error:#}");
            }
        });
        Self { members, task }
    }

    /// One pod of each node that has any.
    pub(super) fn one_of_each_node(&self) -> Vec<Member> {
        let members = lock(&self.members);
        let by_node: BTreeMap<&str, &Member> = members.values().map(|one| (one.node.as_str(), one)).collect();
        by_node.into_values().cloned().collect()
    }

    /// The pods of a node.
    pub(super) fn on(&self, node: &str) -> Vec<Member> {
        let members = lock(&self.members);
        members.values().filter(|one| one.node == node).cloned().collect()
    }
}

fn lock(members: &Members) -> MutexGuard<'_, BTreeMap<String, Member>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Play {
    daemons: HashMap<String, Handle>,
    members: Members,
    tally: Arc<Tally>,
    /// The count for pods that do not restart in place.
    recreated: Tally,
}

impl Play {
    async fn run(self, pods: Api<Pod>) -> Result<()> {
        let mut events = pin!(watcher(pods, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event? {
                Event::Apply(pod) | Event::InitApply(pod) => self.see(&pod).await?,
                Event::Delete(pod) => self.end(&pod).await?,
                Event::Init | Event::InitDone => {}
            }
        }
        bail!("the watch has ended")
    }

    async fn see(&self, pod: &Pod) -> Result<()> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Failed" | "Succeeded")) {
            return self.end(pod).await;
        }
        let (Some(uid), Some("Running")) = (pod.uid(), phase) else {
            return Ok(());
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let failure = Arc::new(Notify::new());
        let member = Member {
            name: pod.name_any(),
            node: node.context("it runs on no node")?,
            failure: Arc::clone(&failure),
        };
        let daemon = self.daemons.get(&member.node);
        if lock(&self.members).insert(uid.clone(), member.clone()).is_some() {
            return Ok(());
        }
        let Some(marked) = marked(pod)? else {
            let recreation = pod.labels().get(labels::RESTART_ATTEMPT);
            self.recreated.runs(recreation.context("no attempt")?.parse()?);
            return Ok(());
        };
        let daemon = daemon.context("a node without a daemon")?;
        let name = marked.supervised.first().context("no worker")?.clone();
        let sandbox = uid.clone().into();
        let (pod, id) = (marked.uid.clone(), uid.replace('-', "").into());
        daemon.tell(Input::PodStarted(sandbox, marked)).await?;
        let container = WorkerContainer { pod, id, name };
        let orders = Orders::to_fail(failure);
        let worker = Worker::register(daemon.clone(), container, Arc::clone(&self.tally), orders).await?;
        tokio::spawn(worker.run());
        Ok(())
    }

    async fn end(&self, pod: &Pod) -> Result<()> {
        let uid = pod.uid().context("no UID")?;
        let Some(member) = lock(&self.members).remove(&uid) else {
            return Ok(());
        };
        if let Some(daemon) = self.daemons.get(&member.node) {
            daemon
                .tell(Input::PodRemoved(uid.clone().into(), uid.into()))
                .await?;
        }
        Ok(())
    }
}

/// The container that the node's daemon would find in the pod, if it restarts in place.
fn marked(pod: &Pod) -> Result<Option<lockstep_node_daemon::worker::types::Pod>> {
    let map = |from: &BTreeMap<String, String>| from.clone().into_iter().collect();
    let (labels, annotations): (HashMap<_, _>, HashMap<_, _>) = (map(pod.labels()), map(pod.annotations()));
    let metadata = Metadata {
        uid: &pod.uid().context("no UID")?,
        namespace: &pod.namespace().context("no namespace")?,
        name: &pod.name_any(),
        labels: &labels,
        annotations: &annotations,
    };
    Ok(match recognise(&metadata)? {
        Some(InPlacePod::Supervised(pod)) => Some(pod),
        Some(InPlacePod::Plain(_)) => bail!("it has no agent"),
        None => None,
    })
}
