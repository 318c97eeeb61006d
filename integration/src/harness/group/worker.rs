//! A running worker, seen from the host.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use nix::sys::signal::Signal;

use crate::harness::manifest::CONTAINER;
use crate::harness::process::{self, Process};

/// Environment variable of a worker with its generation.
const ATTEMPT: &str = "LOCKSTEP_RESTART_ATTEMPT";

/// A running worker: its pod and container, and its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its pod and container, which a restart in place does not change.
    pub place: Place,
    /// The agent, PID 1 of the container.
    pub agent: Process,
    /// The worker itself.
    pub process: Process,
    /// The generation in the worker's environment.
    pub attempt: u64,
}

/// Pod and container of a worker according to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The completion index.
    pub index: u32,
    /// The pod.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's id.
    pub container: String,
    /// The pod's node.
    pub node: String,
    /// The container's restartCount.
    pub restarts: i32,
}

impl Place {
    /// The place of a pod's worker container, which has to run.
    ///
    /// # Errors
    /// Why it does not run.
    pub fn of(pod: &Pod) -> Result<Self> {
        ensure!(pod.metadata.deletion_timestamp.is_none(), "is being deleted");
        let container = container_id(pod, CONTAINER)?;
        let status = container_status(pod, CONTAINER).context("no status")?;
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        ensure!(running, "does not run: {:?}", status.state);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Ok(Self {
            index: index(pod),
            pod: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            container,
            node: node.unwrap_or_default(),
            restarts: status.restart_count,
        })
    }
}

impl Worker {
    /// All processes of the container except the agent.
    pub fn tree(&self) -> Vec<Process> {
        let mut tree = process::in_container(&self.place.container);
        tree.retain(|process| *process != self.agent);
        tree
    }

    /// Sends a signal to the worker.
    ///
    /// # Errors
    /// If it has gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }
}

/// The pods and containers of these workers.
pub fn places(workers: &[Worker]) -> Vec<Place> {
    workers.iter().map(|worker| worker.place.clone()).collect()
}

/// The completion index of a pod.
pub(super) fn index(pod: &Pod) -> u32 {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| {
            labels
                .get("batch.kubernetes.io/job-completion-index")?
                .parse()
                .ok()
        })
        .unwrap_or_default()
}

/// The status of a container or init container of a pod.
pub fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let regular = status.container_statuses.iter().flatten();
    regular
        .chain(status.init_container_statuses.iter().flatten())
        .find(|status| status.name == name)
}

/// The id of a pod's container, without the name of the runtime.
///
/// # Errors
/// If it has none.
pub fn container_id(pod: &Pod, name: &str) -> Result<String> {
    let id = container_status(pod, name).and_then(|status| status.container_id.as_deref());
    let id = id.with_context(|| format!("no container {name}"))?;
    Ok(id.rsplit_once("://").map_or(id, |(_, id)| id).to_owned())
}

/// True if the kubelet refused to run the pod, since the node had less room than kube-scheduler
/// assumed. Such a pod is replaced, but is not deleted.
pub(super) fn is_rejected(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    reason.is_some_and(|reason| reason.starts_with("OutOf"))
}

/// The worker of a pod, or why it does not run.
pub(super) fn worker(pod: &Pod) -> Result<Worker> {
    let place = Place::of(pod)?;
    let agent = process::init_of(&place.container).context("no PID 1 on this machine")?;
    let process = agent
        .worker()
        .with_context(|| format!("PID 1 ({}) has no worker", agent.args().join(" ")))?;
    let attempt = process
        .env(ATTEMPT)
        .with_context(|| format!("the worker has no {ATTEMPT}"))?;
    Ok(Worker {
        place,
        agent,
        process,
        attempt: attempt.parse()?,
    })
}
