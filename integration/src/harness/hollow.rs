//! Hollow nodes, as kubemark has them: node objects without machines, and one task that plays all their kubelets.
//!
//! Promises: a bound pod of theirs becomes Running; one that says how long it runs has succeeded when that is over; one that is on its way
//! out ends, and is gone soon.

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

/// Annotation of pods that end by themselves: how long they run, in milliseconds.
pub const RUNS_FOR: &str = "test.lockstep.dev/runs-for-ms";
/// Annotation of pods whose node reports no more: nothing becomes of them.
pub const SILENT: &str = "test.lockstep.dev/silent";
/// Requests that are under way at the same time while nodes are made.
const AT_ONCE: usize = 16;
/// How often a request is tried again that the API server could not take, and after how long.
const RETRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// Label of hollow nodes: the pool that they belong to.
pub const POOL: &str = "test.lockstep.dev/pool";

/// Makes nodes `<pool>-0`, `<pool>-1` and so on that are Ready and have so many CPUs, and room for 110 pods.
///
/// # Errors
/// When the API server refuses one.
pub async fn create_nodes(client: &Client, pool: &str, count: usize, cpus: u32) -> Result<()> {
    create_nodes_named(client, pool, pool, count, cpus).await
}

/// As [`create_nodes`], with names that begin otherwise: more nodes for a pool that has some.
///
/// # Errors
/// When the API server refuses one.
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

/// Plays the kubelets of some pods for as long as it is kept.
pub struct Kubelets {
    task: JoinHandle<()>,
}

impl Kubelets {
    /// Starts to, for the pods that this one sees.
    pub fn start(client: Client, pods: Api<Pod>) -> Self {
        Self {
            task: tokio::spawn(play(client, pods)),
        }
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn play(client: Client, pods: Api<Pod>) {
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

/// What a kubelet does about a pod that looks like this.
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
        // Of this version alone: a later one may have ended, and has an event of its own.
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

/// Does it, and again where the API server is busy or away: nothing else would remind a kubelet of the pod.
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

/// Writes a phase, where it is given only while the pod is of this `version`.
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

/// The pod is gone, or is another one by now.
fn is_stale(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [404, 409, 422].contains(&status.code))
}
