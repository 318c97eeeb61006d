//! A group's view of the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use lockstep_core::restart::{Epoch, Generation, Identity, Incarnation, Report};
use lockstep_proto::NODE_PROTOCOL_WORKER_RESTARTS;

use thiserror::Error;

use super::group::{GroupState, Inner};
use super::{Published, Registry};
use crate::hub::convert::{self, NamedOnNode};
use crate::hub::outbox::Outbox;

/// A group task's side of the registry. Dropping it tells the nodes nothing: workers run on.
pub struct GroupLink {
    pub(super) uid: String,
    /// Which link of the group this is.
    pub(super) owner: u64,
    pub(super) registry: Arc<Registry>,
    pub(super) state: Arc<GroupState>,
}

/// What has changed on the nodes since a group's task last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// Nothing.
    None,
    /// Some workers are in another state.
    Reports,
    /// A node has said hello since, so more may be different.
    Hello,
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

    /// The newest reports, by node and incarnation. None of them is news any more; hellos are.
    #[must_use]
    pub fn reports(&self) -> Vec<(Incarnation, Report)> {
        let Some(mut inner) = self.own() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        inner
            .reports
            .show_all(|incarnation, report| all.push((incarnation.clone(), report.clone())));
        all
    }

    /// What the nodes have said since they were last asked: whether anything, and whether only of
    /// their workers.
    #[must_use]
    pub fn news(&self) -> Changes {
        match self.own() {
            Some(inner) if inner.met => Changes::Hello,
            Some(inner) if inner.reports.has_news() => Changes::Reports,
            _ => Changes::None,
        }
    }

    /// Shows the reports that have changed since they were last asked for. Reports that
    /// [`GroupLink::forget_pods`] has dropped are not told of. The nodes wait meanwhile: `see`
    /// takes no time, and asks nothing of this link.
    pub fn hear(&self, see: impl FnMut(&Incarnation, &Report)) {
        if let Some(mut inner) = self.own() {
            inner.reports.show_news(see);
        }
    }

    /// A node has reported what cannot be believed. It is noted once for each report, and changes
    /// nothing.
    pub fn disown(&self, incarnation: &Incarnation, node: &str, why: &Unbelieved) {
        let Some(mut inner) = self.own() else { return };
        if inner.reports.disown(node, incarnation) {
            drop(inner);
            self.registry.refusals.note(node, why.reason(), why);
        }
    }

    /// The status tells of a leader with this epoch.
    pub fn heard_of(&self, epoch: Epoch) {
        self.registry.epoch_tracker.written(epoch);
    }

    /// The epoch that this leader acts under.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.registry.epoch
    }

    /// Resolves when reports have changed since the last call. Cancel-safe: a change is kept until
    /// it is seen.
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

    /// From now on only hellos of these nodes are news: what was said of others before is not lost,
    /// and is not waited for.
    pub fn look_at(&self, nodes: &Arc<BTreeSet<String>>) {
        if let Some(mut inner) = self.own() {
            inner.nodes = Some(Arc::clone(nodes));
            inner.hellos.clear();
        }
    }

    /// Those of these nodes whose daemons have reported to this leader. The reports that are asked
    /// for after this hold what they said; a hello that comes later is news.
    #[must_use]
    pub fn heard(&self, nodes: &BTreeSet<String>) -> BTreeSet<String> {
        self.met();
        nodes.iter().filter(|node| self.is_told(node)).cloned().collect()
    }

    /// The same of those that have said hello since they were last asked for, of the nodes that
    /// were looked at then.
    #[must_use]
    pub fn greeted(&self) -> BTreeSet<String> {
        self.met().into_iter().filter(|node| self.is_told(node)).collect()
    }

    /// Who has said hello is no news any more.
    fn met(&self) -> BTreeSet<String> {
        let Some(mut inner) = self.own() else {
            return BTreeSet::new();
        };
        inner.met = false;
        std::mem::take(&mut inner.hellos)
    }

    fn is_told(&self, node: &str) -> bool {
        self.registry.nodes.get(node).is_some_and(|node| node.told)
    }

    /// True if this node's daemon can restart one worker without its group, as far as it has told
    /// this leader.
    #[must_use]
    pub fn restarts_workers(&self, node: &str) -> bool {
        let node = self.registry.nodes.get(node);
        node.is_none_or(|node| node.protocol >= NODE_PROTOCOL_WORKER_RESTARTS)
    }

    /// Drops the reports of pods that are not in `pods` and of which nothing was heard for
    /// `silence`: a report may come before its pod does. Of the containers of one worker that have
    /// ended in its pod the latest few are kept. Tells whether anything was dropped.
    pub fn forget_pods<V>(&self, pods: &BTreeMap<String, V>, silence: Duration) -> bool {
        let mut inner = self.state.lock();
        let dropped = inner.reports.forget_pods(pods, silence);
        let any = !dropped.is_empty();
        if any {
            inner.said = None;
        }
        drop(inner);
        self.registry.forget_workers(dropped);
        any
    }

    /// Tells the group's nodes what is desired, each only what is new to it.
    pub fn publish(&self, published: Published) {
        let Some(mut inner) = self.own() else { return };
        let again = std::mem::take(&mut inner.again);
        let is_new = inner.said.as_ref() != Some(&published);
        if !is_new && again.is_empty() {
            return;
        }
        let mut fresh = inner.reports.by_node(&published.desired.fresh);
        let mut stale = inner.reports.by_node(&published.desired.stale);
        let mut worker_restarts = inner
            .reports
            .worker_restarts_by_node(&published.desired.worker_restarts);
        let message = |named: NamedOnNode| {
            let Published { desired, policy, .. } = &published;
            let epoch = self.registry.epoch;
            Arc::new(convert::group_to(&self.uid, epoch, desired, policy, named))
        };
        // For all nodes that none of their incarnations is named to.
        let common = message(NamedOnNode::default());
        let nodes: Vec<_> = if is_new {
            inner.published.retain(|node, _| published.nodes.contains(node));
            published.nodes.iter().collect()
        } else {
            again.intersection(&published.nodes).collect()
        };
        let mut news = Vec::new();
        for node in nodes {
            let (fresh, stale, worker_restarts) = (
                fresh.remove(node),
                stale.remove(node),
                worker_restarts.remove(node),
            );
            let group = if fresh.is_none() && stale.is_none() && worker_restarts.is_none() {
                Arc::clone(&common)
            } else {
                message(NamedOnNode {
                    fresh: fresh.unwrap_or_default(),
                    stale: stale.unwrap_or_default(),
                    worker_restarts: worker_restarts.unwrap_or_default(),
                })
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
        inner.again.clear();
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
