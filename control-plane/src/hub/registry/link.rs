//! A group's view of the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use lockstep_core::restart::{Epoch, Generation, Identity, Incarnation, Report};
use lockstep_proto::NODE_PROTOCOL_ALONE;

use thiserror::Error;

use super::{GroupState, Inner, Published, Registry};
use crate::hub::convert;
use crate::hub::session::Outbox;

/// A group task's side of the registry. Dropping it tells the nodes nothing: workers run on.
pub struct GroupLink {
    pub(super) uid: String,
    /// Which link of the group this is.
    pub(super) owner: u64,
    pub(super) registry: Arc<Registry>,
    pub(super) state: Arc<GroupState>,
}

/// Why a report is not believed.
#[derive(Debug, Error)]
pub enum Unbelieved {
    /// Its pod is another node's.
    #[error("the node reports on pod {pod}, which is bound to node {bound}")]
    ForeignPod {
        /// UID of the pod.
        pod: String,
        /// Where it is.
        bound: String,
    },
    /// Its pod is another worker's.
    #[error("the node reports on the worker {worker} by pod {pod}, which is not that worker's")]
    OtherWorker {
        /// UID of the pod.
        pod: String,
        /// What it says.
        worker: Identity,
    },
    /// No leader has given this generation.
    #[error(
        "the node speaks of the generation {generation} of pod {pod}, which cannot be where {durable} is durable"
    )]
    ImpossibleGeneration {
        /// UID of the pod.
        pod: String,
        /// What it says.
        generation: Generation,
        /// What the status says.
        durable: Generation,
    },
    /// So many restarts cannot have been counted.
    #[error(
        "the node speaks of {counter} counted restarts to pod {pod}, which cannot be where {durable} are durable"
    )]
    ImpossibleCounter {
        /// UID of the pod.
        pod: String,
        /// What it says.
        counter: u32,
        /// What the status says.
        durable: u32,
    },
}

impl Unbelieved {
    /// Its name in metrics.
    fn reason(&self) -> &'static str {
        match self {
            Self::ForeignPod { .. } => "foreign_pod",
            Self::OtherWorker { .. } => "other_worker",
            Self::ImpossibleGeneration { .. } => "impossible_generation",
            Self::ImpossibleCounter { .. } => "impossible_counter",
        }
    }
}

impl GroupLink {
    /// The group's state, unless it is another link's by now.
    fn own(&self) -> Option<MutexGuard<'_, Inner>> {
        let inner = self.state.lock();
        (inner.owner == Some(self.owner)).then_some(inner)
    }

    /// The newest reports, by node and incarnation. None of them is news any more.
    #[must_use]
    pub fn reports(&self) -> Vec<(Incarnation, Report)> {
        let Some(mut inner) = self.own() else {
            return Vec::new();
        };
        inner.met = false;
        let all = inner.reports.iter_mut();
        all.map(|(key, kept)| kept.take(key)).collect()
    }

    /// Those of them that have changed since they were last asked for; `None`: a node has said hello since, so more may be different. Reports that
    /// [`GroupLink::forget_pods`] has dropped are not told of.
    #[must_use]
    pub fn news(&self) -> Option<Vec<(Incarnation, Report)>> {
        let Some(mut inner) = self.own() else {
            return Some(Vec::new());
        };
        if inner.met {
            return None;
        }
        let all = inner.reports.iter_mut();
        let news = all.filter(|(_, kept)| kept.news);
        Some(news.map(|(key, kept)| kept.take(key)).collect())
    }

    /// A node has reported what cannot be believed. It is noted once for each report, and changes nothing.
    pub fn disown(&self, incarnation: &Incarnation, node: &str, why: &Unbelieved) {
        let key = (node.to_owned(), incarnation.clone());
        let Some(mut inner) = self.own() else { return };
        let disowned = inner.reports.get_mut(&key).map(|kept| &mut kept.disowned);
        if disowned.is_some_and(|disowned| !std::mem::replace(disowned, true)) {
            drop(inner);
            self.registry.refusals.note(node, why.reason(), why);
        }
    }

    /// The status tells of a leader with this epoch.
    pub fn heard_of(&self, epoch: Epoch) {
        self.registry.rivals.written(epoch);
    }

    /// The epoch that this leader acts under.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.registry.epoch
    }

    /// Resolves when reports have changed since the last call. Cancel-safe: a change is kept until it is seen.
    pub async fn changed(&self) {
        self.state.changed.notified().await;
    }

    /// The same, at this time at the earliest.
    pub async fn changed_after(&self, at: Instant) {
        if at > Instant::now() {
            tokio::time::sleep_until(at.into()).await;
        }
        self.changed().await;
    }

    /// From now on only hellos of these nodes are news: what was said of others before is not lost, and is not waited for.
    pub fn look_at(&self, nodes: &Arc<BTreeSet<String>>) {
        if let Some(mut inner) = self.own() {
            inner.nodes = Some(Arc::clone(nodes));
        }
    }

    /// Whether this node's daemon has reported to this leader.
    #[must_use]
    pub fn heard(&self, node: &str) -> bool {
        self.registry.nodes.contains_key(node)
    }

    /// Whether this node's daemon can restart one worker alone, as far as it has told this leader.
    #[must_use]
    pub fn restarts_alone(&self, node: &str) -> bool {
        let node = self.registry.nodes.get(node);
        node.is_none_or(|node| node.protocol >= NODE_PROTOCOL_ALONE)
    }

    /// Drops the reports of pods that are not in `pods` and of which nothing was heard for `silence`: a report may come before its pod does. Of the
    /// containers of one worker that have ended in its pod the latest [`ENDED`] are kept.
    pub fn forget_pods<V>(&self, pods: &BTreeMap<String, V>, silence: Duration) {
        let mut dropped = Vec::new();
        let mut inner = self.state.lock();
        let outlived = inner.outlived();
        inner.reports.retain(|key, kept| {
            let (node, incarnation) = key;
            let keep = (pods.contains_key(&incarnation.pod_uid) || kept.at.elapsed() < silence)
                && !outlived.contains(key);
            if !keep {
                dropped.push((node.clone(), incarnation.clone()));
            }
            keep
        });
        if !dropped.is_empty() {
            inner.said = None;
        }
        drop(inner);
        self.registry.forget_workers(dropped);
    }

    /// Tells the group's nodes what is desired, each only what is new to it.
    pub fn publish(&self, published: Published) {
        let Some(mut inner) = self.own() else { return };
        if inner.said.as_ref() == Some(&published) {
            return;
        }
        let mut fresh = inner.by_node(&published.desired.fresh);
        let mut stale = inner.by_node(&published.desired.stale);
        let mut alone = inner.alone_by_node(&published.desired.alone);
        let message = |fresh, stale, alone| {
            let Published { desired, policy, .. } = &published;
            let epoch = self.registry.epoch;
            Arc::new(convert::group_to(
                &self.uid, epoch, desired, policy, fresh, stale, alone,
            ))
        };
        // For all nodes that none of their incarnations is named to.
        let common = message(Vec::new(), Vec::new(), Vec::new());
        inner.published.retain(|node, _| published.nodes.contains(node));
        let mut news = Vec::new();
        for node in published.nodes.iter() {
            let (fresh, stale, alone) = (fresh.remove(node), stale.remove(node), alone.remove(node));
            let group = if fresh.is_none() && stale.is_none() && alone.is_none() {
                Arc::clone(&common)
            } else {
                message(
                    fresh.unwrap_or_default(),
                    stale.unwrap_or_default(),
                    alone.unwrap_or_default(),
                )
            };
            if inner.published.get(node).is_none_or(|old| *old != group) {
                inner.published.insert(node.clone(), Arc::clone(&group));
                news.push((node.clone(), group));
            }
        }
        inner.said = Some(published);
        drop(inner);
        for (node, group) in news {
            if let Some(outbox) = self.outbox(&node) {
                outbox.desired(group);
            }
        }
    }

    /// Tells the nodes that nobody looks after the group any more.
    pub fn forget(&self) {
        let Some(mut inner) = self.own() else { return };
        inner.said = None;
        let published = std::mem::take(&mut inner.published);
        drop(inner);
        for node in published.keys() {
            if let Some(outbox) = self.outbox(node) {
                outbox.forget(&self.uid, self.registry.epoch);
            }
        }
    }

    fn outbox(&self, node: &str) -> Option<Arc<Outbox>> {
        let entry = self.registry.nodes.get(node)?;
        entry.session.as_ref().map(|(_, outbox)| Arc::clone(outbox))
    }
}

impl Drop for GroupLink {
    fn drop(&mut self) {
        let Some(mut inner) = self.own() else { return };
        inner.owner = None;
        inner.unclaimed_since = Instant::now();
    }
}
