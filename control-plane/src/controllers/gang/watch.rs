//! The watches of all nodes and all pods.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::lean_objects::{SeenNode, SeenPod};
use crate::k8s::watch::follow::{Health, patient};

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// What the watches show. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Watched {
    cluster: Arc<Mutex<Cluster>>,
    /// Notified of each change.
    pub(super) changed: Arc<Notify>,
}

impl Watched {
    /// Starts the watches as tasks of `tasks`. They end with `end`.
    pub(super) fn start(&self, client: &Client, tasks: &mut JoinSet<()>, end: &CancellationToken) {
        let config = || watcher::Config::default().page_size(PAGE);
        let nodes = patient(watcher(Api::<SeenNode>::all(client.clone()), config()));
        tasks.spawn(
            self.clone()
                .follow("Node", nodes.boxed(), Cluster::apply_node, end.clone()),
        );
        let pods = patient(watcher(Api::<SeenPod>::all(client.clone()), config()));
        tasks.spawn(
            self.clone()
                .follow("Pod", pods.boxed(), Cluster::apply_pod, end.clone()),
        );
    }

    /// Reads or updates the cluster.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Cluster) -> T) -> T {
        // Nothing under this lock can leave it half-changed, so a panic elsewhere does not make it
        // unusable.
        act(&mut self.cluster.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn follow<K>(
        self,
        kind: &'static str,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
        apply: fn(&mut Cluster, &Event<K>) -> bool,
        end: CancellationToken,
    ) {
        let mut events = std::pin::pin!(events.take_until(end.cancelled_owned()));
        let mut health = Health::default();
        let mut listed = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    match &event {
                        Event::Init => listed = 0,
                        Event::InitApply(_) => listed += 1,
                        Event::InitDone => health.recovered(kind, listed),
                        Event::Apply(_) | Event::Delete(_) => {}
                    }
                    if self.with(|cluster| apply(cluster, &event)) {
                        self.changed.notify_one();
                    }
                }
                Err(error) => health.failed(kind, &error),
            }
        }
    }
}
