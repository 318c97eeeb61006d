//! Hollow nodes, as in kubemark: node objects without machines, and one task that simulates all
//! their kubelets.
//!
//! Promises: a bound pod becomes Running. A pod whose annotation names a duration succeeds after
//! that time. A pod that is being deleted ends and is soon gone.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Annotation of pods that succeed by themselves: how long they run, in milliseconds.
pub const RUNS_FOR: &str = "test.lockstep.dev/runs-for-ms";
/// Annotation of pods whose node no longer reports: their status does not change.
pub const SILENT: &str = "test.lockstep.dev/silent";
/// Concurrent requests while nodes are created.
const AT_ONCE: usize = 16;
/// How often a failed request is repeated, and the delay between attempts.
const RETRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// Label of hollow nodes: the pool that they belong to.
pub const POOL: &str = "test.lockstep.dev/pool";

/// Creates nodes `<pool>-0`, `<pool>-1` and so on, which are Ready and have this many CPUs and room
/// for 110 pods.
///
/// # Errors
/// If the API server refuses one.
pub async fn create_nodes(client: &Client, pool: &str, count: usize, cpus: u32) -> Result<()> {
    create_nodes_named(client, pool, pool, count, cpus).await
}

/// [`create_nodes`] with another prefix of names, to add nodes to a pool.
///
/// # Errors
/// If the API server refuses one.
pub async fn create_nodes_named(
    client: &Client,
    prefix: &str,
    pool: &str,
    count: usize,
    cpus: u32,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    stream::iter((0..count).map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, async |number| {
            let node = node(&format!("{prefix}-{number}"), pool, cpus);
            nodes
                .create(&PostParams::default(), &serde_json::from_value(node)?)
                .await?;
            Ok(())
        })
        .await
}

fn node(name: &str, pool: &str, cpus: u32) -> Value {
    let room = json!({"cpu": cpus.to_string(), "memory": "64Gi", "pods": "110"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, POOL: pool}},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Hollow", "message": "no machine"}],
        },
    })
}

/// Simulates the kubelets of some pods until it is dropped.
pub struct Kubelets {
    task: JoinHandle<()>,
}

impl Kubelets {
    /// Starts the simulation for the pods that `pods` lists.
    pub fn start(client: Client, pods: Api<Pod>) -> Self {
        Self {
            task: tokio::spawn(simulate(client, pods)),
        }
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn simulate(client: Client, pods: Api<Pod>) {
    let events = watcher(pods, watcher::Config::default());
    let mut events = std::pin::pin!(events);
    let mut work: FuturesUnordered<BoxFuture<'static, Result<(), kube::Error>>> = FuturesUnordered::new();
    let mut timed = HashSet::new();
    loop {
        tokio::select! {
            Some(done) = work.next() => if let Err(error) = done && !is_stale(&error) {
                eprintln!("a hollow kubelet: {error}");
            },
            event = events.next() => match event {
                Some(Ok(Event::Apply(pod) | Event::InitApply(pod))) => {
                    if let Some(next) = next(&client, &pod, &mut timed) {
                        work.push(next);
                    }
                }
                Some(Ok(Event::Delete(pod))) => drop(timed.remove(&pod.uid())),
                Some(Ok(Event::Init | Event::InitDone)) => {}
                Some(Err(error)) => {
                    eprintln!("hollow kubelets: {error}");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                None => break,
            },
        }
    }
}

/// What a kubelet does next about a pod in this state.
fn next(
    client: &Client,
    pod: &Pod,
    timed: &mut HashSet<Option<String>>,
) -> Option<BoxFuture<'static, Result<(), kube::Error>>> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    if pod.annotations().contains_key(SILENT) {
        return None;
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace()?);
    let (name, uid) = (pod.name_any(), pod.uid()?);
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if pod.metadata.deletion_timestamp.is_some() {
        if !matches!(phase, Some("Failed" | "Succeeded")) {
            return Some(async move { insist(|| show(&api, &name, &uid, "Failed", None)).await }.boxed());
        }
        let exactly = Preconditions {
            uid: Some(uid),
            resource_version: None,
        };
        let params = DeleteParams::default().grace_period(0).preconditions(exactly);
        let delete = async move { insist(|| api.delete(&name, &params)).await.map(drop) };
        return Some(delete.boxed());
    }
    match phase {
        // Only this version: a later one may have ended, and has its own event.
        Some("Pending") => {
            let version = pod.resource_version()?;
            let run = async move { insist(|| show(&api, &name, &uid, "Running", Some(&version))).await };
            Some(run.boxed())
        }
        Some("Running") => {
            let time = Duration::from_millis(pod.annotations().get(RUNS_FOR)?.parse().ok()?);
            timed.insert(Some(uid.clone())).then(|| {
                async move {
                    tokio::time::sleep(time).await;
                    insist(|| show(&api, &name, &uid, "Succeeded", None)).await
                }
                .boxed()
            })
        }
        _ => None,
    }
}

/// Makes a request, and repeats it if the API server is busy or unavailable: no later event
/// would remind the kubelet of the pod.
async fn insist<T, F>(request: impl Fn() -> F) -> Result<T, kube::Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    for _ in 0..RETRIES {
        match request().await {
            Err(error) if !is_stale(&error) => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
    request().await
}

/// Writes a phase. With a `version`, only if the pod still has it.
async fn show(
    api: &Api<Pod>,
    name: &str,
    uid: &str,
    phase: &str,
    version: Option<&str>,
) -> Result<(), kube::Error> {
    let ready = if phase == "Running" { "True" } else { "False" };
    let conditions =
        ["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": ready, "reason": "Hollow"}));
    let metadata = json!({"uid": uid, "resourceVersion": version});
    let status = json!({"metadata": metadata, "status": {"phase": phase, "conditions": conditions}});
    let params = PatchParams::default();
    api.patch_status(name, &params, &Patch::Strategic(status))
        .await
        .map(drop)
}

/// True if the pod is gone or was replaced.
fn is_stale(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [404, 409, 422].contains(&status.code))
}
