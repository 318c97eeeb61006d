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

/// A group task's side of the registry. Dropping it sends the nodes nothing: workers run on.
pub struct GroupLink {
    pub(super) uid: String,
    /// Which link of the group this is.
    pub(super) owner: u64,
    pub(super) registry: Arc<Registry>,
    pub(super) state: Arc<GroupState>,
}

/// What has changed on the nodes since a group's task last looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// Nothing.
    None,
    /// Some workers have changed their state.
    Reports,
    /// A node has sent a Hello, so more may have changed.
    Hello,
}

/// Why a report is implausible.
#[derive(Debug, Error)]
pub enum Unbelieved {
    /// Its pod belongs to another node.
    #[error("the node reports on pod {pod}, which is bound to node {bound}")]
    ForeignPod {
        /// UID of the pod.
        pod: String,
        /// The node of the pod.
        bound: String,
    },
    /// Its pod belongs to another worker.
    #[error("the node reports on the worker {worker} in pod {pod}, which is not a pod of that worker")]
    OtherWorker {
        /// UID of the pod.
        pod: String,
        /// The worker in the report.
        worker: Identity,
    },
    /// No leader has ordered this generation.
    #[error(
        "the node reports generation {generation} for pod {pod}, which is impossible: the status has {durable}"
    )]
    ImpossibleGeneration {
        /// UID of the pod.
        pod: String,
        /// The generation in the report.
        generation: Generation,
        /// The value in the status.
        durable: Generation,
    },
    /// The count of restarts is higher than any possible one.
    #[error(
        "the node reports {counted_restarts} counted restarts for pod {pod}, which is impossible: the status has {durable}"
    )]
    ImpossibleCountedRestarts {
        /// UID of the pod.
        pod: String,
        /// The count in the report.
        counted_restarts: u32,
        /// The value in the status.
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
            Self::ImpossibleCountedRestarts { .. } => "impossible_counter",
        }
    }
}

impl GroupLink {
    /// Locks the group's state, unless another link has it by now.
    fn lock(&self) -> Option<MutexGuard<'_, Inner>> {
        let inner = self.state.lock();
        (inner.owner == Some(self.owner)).then_some(inner)
    }

    /// The newest report of each incarnation, by node and incarnation. It marks them as seen, but
    /// not Hellos.
    #[must_use]
    pub fn all_reports(&self) -> Vec<(Incarnation, Report)> {
        let Some(mut inner) = self.lock() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        inner
            .reports
            .show_all(|incarnation, report| all.push((incarnation.clone(), report.clone())));
        all
    }

    /// The kind of change on the nodes that the task has not read yet. It marks nothing as seen.
    #[must_use]
    pub fn unseen_changes(&self) -> Changes {
        match self.lock() {
            Some(inner) if inner.has_hello => Changes::Hello,
            Some(inner) if inner.reports.has_unseen() => Changes::Reports,
            _ => Changes::None,
        }
    }

    /// Calls `see` with each report that is not marked as seen, and marks it. Those that
    /// [`GroupLink::drop_gone_pods`] has dropped are left out. The group is locked meanwhile: `see`
    /// must be quick, and must not use this link.
    pub fn read_new_reports(&self, see: impl FnMut(&Incarnation, &Report)) {
        if let Some(mut inner) = self.lock() {
            inner.reports.show_unseen(see);
        }
    }

    /// Logs and counts a report that the task does not believe, once for each report. It has no
    /// other effect.
    pub fn refuse_report(&self, incarnation: &Incarnation, node: &str, why: &Unbelieved) {
        let Some(mut inner) = self.lock() else { return };
        if inner.reports.refuse(node, incarnation) {
            drop(inner);
            self.registry.refusals.note(node, why.reason(), why);
        }
    }

    /// Notes an epoch that the group's status holds. It may be above this leader's own.
    pub fn note_epoch(&self, epoch: Epoch) {
        self.registry.epoch_tracker.note_status(epoch);
    }

    /// The epoch that this leader acts under.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.registry.epoch
    }

    /// Waits for a change on the nodes since the last call. Cancel-safe: no change is lost.
    pub async fn changed(&self) {
        self.state.changed.notified().await;
    }

    /// Like [`GroupLink::changed`], but does not return before this time.
    pub async fn changed_after(&self, at: Instant) {
        if at > Instant::now() {
            tokio::time::sleep_until(at.into()).await;
        }
        self.changed().await;
    }

    /// Makes these the nodes that the task waits for. From now on only their Hellos count as
    /// changes. Reports of other nodes are kept.
    pub fn watch_nodes(&self, nodes: &Arc<BTreeSet<String>>) {
        if let Some(mut inner) = self.lock() {
            inner.nodes = Some(Arc::clone(nodes));
            inner.hellos.clear();
        }
    }

    /// Those of these nodes whose daemons have reported to this leader. It marks all Hellos as
    /// seen. Reports that are read after this include those of the nodes; a later Hello counts as a
    /// change.
    #[must_use]
    pub fn reported_nodes(&self, nodes: &BTreeSet<String>) -> BTreeSet<String> {
        self.take_hellos();
        nodes
            .iter()
            .filter(|node| self.has_snapshot(node))
            .cloned()
            .collect()
    }

    /// The same for the watched nodes whose Hellos are not marked as seen.
    #[must_use]
    pub fn newly_reported_nodes(&self) -> BTreeSet<String> {
        self.take_hellos()
            .into_iter()
            .filter(|node| self.has_snapshot(node))
            .collect()
    }

    /// The nodes with a Hello that is not marked as seen. It marks them.
    fn take_hellos(&self) -> BTreeSet<String> {
        let Some(mut inner) = self.lock() else {
            return BTreeSet::new();
        };
        inner.has_hello = false;
        std::mem::take(&mut inner.hellos)
    }

    fn has_snapshot(&self, node: &str) -> bool {
        let node = self.registry.nodes.get(node);
        node.is_some_and(|node| node.has_snapshot)
    }

    /// True if this node's daemon can restart one worker without its group, or its version is not
    /// known yet.
    #[must_use]
    pub fn supports_worker_restarts(&self, node: &str) -> bool {
        let node = self.registry.nodes.get(node);
        node.is_none_or(|node| node.protocol >= NODE_PROTOCOL_WORKER_RESTARTS)
    }

    /// Drops the reports of pods that are not in `pods` and have sent nothing for `silence`, since
    /// a report may come before its pod does. Of the ended containers of one worker in one pod the
    /// latest few are kept. Returns true if any report was dropped.
    pub fn drop_gone_pods<V>(&self, pods: &BTreeMap<String, V>, silence: Duration) -> bool {
        let mut inner = self.state.lock();
        let dropped = inner.reports.drop_gone_pods(pods, silence);
        let any = !dropped.is_empty();
        if any {
            inner.last_published = None;
        }
        drop(inner);
        self.registry.forget_workers(dropped);
        any
    }

    /// Sends the desired state to the group's nodes, to each only what is new to it.
    pub fn publish(&self, published: Published) {
        let Some(mut inner) = self.lock() else { return };
        let again = std::mem::take(&mut inner.again);
        let is_new = inner.last_published.as_ref() != Some(&published);
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
        // For all nodes without a named incarnation.
        let common = message(NamedOnNode::default());
        let nodes: Vec<_> = if is_new {
            inner.published.retain(|node, _| published.nodes.contains(node));
            published.nodes.iter().collect()
        } else {
            again.intersection(&published.nodes).collect()
        };
        let mut messages = Vec::new();
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
                messages.push((node.clone(), group));
            }
        }
        inner.last_published = Some(published);
        drop(inner);
        for (node, group) in messages {
            if let Some(outbox) = self.outbox(&node) {
                outbox.desired(group);
            }
        }
    }

    /// Takes back what was published: tells the nodes that the group is no longer managed.
    pub fn withdraw(&self) {
        let Some(mut inner) = self.lock() else { return };
        inner.last_published = None;
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
        let Some(mut inner) = self.lock() else { return };
        inner.owner = None;
        inner.unclaimed_since = Instant::now();
    }
}
