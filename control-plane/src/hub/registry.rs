//! Where sessions and group tasks meet: the newest report of every worker, the newest desired state of every group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use lockstep_core::restart::{Alone, Desired, Epoch, Incarnation, Phase, Report};
use lockstep_proto::NODE_PROTOCOL_ALONE;
use lockstep_proto::node::v1 as pb;
use tokio::sync::Notify;

use super::convert::{self, GroupPolicy, Reported};
use super::rivals::Rivals;
use super::session::Outbox;

/// Reports of one node that are kept at most. A node runs some hundreds of pods; beyond this it is talking nonsense.
const WORKERS_PER_NODE: usize = 4096;

/// All groups and nodes that this replica knows of.
pub struct Registry {
    epoch: Epoch,
    rivals: Rivals,
    groups: DashMap<String, Arc<GroupState>>,
    nodes: DashMap<String, Node>,
    sessions: AtomicU64,
}

#[derive(Default)]
struct Node {
    session: Option<(u64, Arc<Outbox>)>,
    /// The version of the protocol that its last stream has.
    protocol: u32,
    workers: BTreeMap<Incarnation, String>,
}

#[derive(Default)]
struct GroupState {
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    reports: BTreeMap<(String, Incarnation), (u64, Report, Instant)>,
    published: BTreeMap<String, Arc<pb::Group>>,
    /// Whether a group task looks after it, and since when none does.
    claimed: bool,
    unclaimed_since: Instant,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            reports: BTreeMap::new(),
            published: BTreeMap::new(),
            claimed: false,
            unclaimed_since: Instant::now(),
        }
    }
}

impl Inner {
    /// Incarnations, by the nodes that have reported them.
    fn by_node(&self, named: &BTreeSet<Incarnation>) -> BTreeMap<String, Vec<Incarnation>> {
        let mut nodes: BTreeMap<String, Vec<Incarnation>> = BTreeMap::new();
        let reported = self.reports.keys();
        for (node, incarnation) in reported.filter(|(_, incarnation)| named.contains(incarnation)) {
            nodes.entry(node.clone()).or_default().push(incarnation.clone());
        }
        nodes
    }

    /// The same of those whose worker was restarted alone.
    fn alone_by_node(
        &self,
        alone: &BTreeMap<Incarnation, Alone>,
    ) -> BTreeMap<String, Vec<(Incarnation, Alone)>> {
        let mut nodes: BTreeMap<String, Vec<(Incarnation, Alone)>> = BTreeMap::new();
        for (node, incarnation) in self.reports.keys() {
            if let Some(alone) = alone.get(incarnation) {
                let of_node = nodes.entry(node.clone()).or_default();
                of_node.push((incarnation.clone(), *alone));
            }
        }
        nodes
    }
}

impl GroupState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds this lock can leave it half-changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a group task publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// What all workers should be.
    pub desired: Desired,
    /// What the nodes need besides.
    pub policy: GroupPolicy,
    /// The nodes that hold pods of the group.
    pub nodes: BTreeSet<String>,
}

impl Registry {
    /// An empty registry of the leader with this epoch.
    #[must_use]
    pub fn new(epoch: Epoch) -> Arc<Self> {
        Arc::new(Self {
            epoch,
            rivals: Rivals::new(epoch),
            groups: DashMap::new(),
            nodes: DashMap::new(),
            sessions: AtomicU64::new(0),
        })
    }

    /// The leader's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Resolves once somebody has heard of a higher epoch than the leader's. Cancel-safe.
    pub async fn outbid(&self) -> Epoch {
        self.rivals.outbid().await
    }

    /// Nodes that are connected now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.nodes.iter().filter(|node| node.session.is_some()).count()
    }

    /// The link of a group's task. There is one task per group.
    #[must_use]
    pub fn claim(self: &Arc<Self>, uid: &str) -> GroupLink {
        let state = self.group(uid);
        state.lock().claimed = true;
        GroupLink {
            uid: uid.to_owned(),
            registry: Arc::clone(self),
            state,
        }
    }

    /// Drops what was reported of groups that no task has looked after for this long: their JobSets are not ours, or gone.
    pub fn sweep(&self, older_than: Duration) {
        let mut dropped = Vec::new();
        self.groups.retain(|_, state| {
            let inner = state.lock();
            let keep = inner.claimed || inner.unclaimed_since.elapsed() < older_than;
            if !keep {
                dropped.extend(inner.reports.keys().cloned());
            }
            keep
        });
        self.forget_workers(dropped);
    }

    /// Workers that no group keeps reports of any more. Never called with a group locked: nodes come before groups.
    fn forget_workers(&self, workers: Vec<(String, Incarnation)>) {
        for (node, incarnation) in workers {
            if let Some(mut entry) = self.nodes.get_mut(&node) {
                entry.workers.remove(&incarnation);
            }
        }
    }

    fn group(&self, uid: &str) -> Arc<GroupState> {
        Arc::clone(&self.groups.entry(uid.to_owned()).or_default())
    }

    /// A daemon has said hello, and speaks this version of the protocol: its snapshot is what it knows. What it no longer lists is out of sight,
    /// not lost.
    pub fn connect(
        &self,
        node: &str,
        outbox: &Arc<Outbox>,
        protocol: u32,
        snapshot: Vec<pb::WorkerState>,
    ) -> u64 {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let known = {
            let mut entry = self.nodes.entry(node.to_owned()).or_default();
            if let Some((_, old)) = entry.session.replace((session, Arc::clone(outbox))) {
                old.close();
            }
            entry.protocol = protocol;
            std::mem::take(&mut entry.workers)
        };
        let mut touched: BTreeSet<String> = known.values().cloned().collect();
        self.unlink(node, &known);
        touched.extend(self.store(node, snapshot));
        for group in self.groups.iter() {
            if let Some(desired) = group.lock().published.get(node) {
                outbox.desired(Arc::clone(desired));
            }
        }
        self.notify_all_of(node, &touched);
        session
    }

    /// The stream has ended. Its workers run on, out of sight.
    pub fn disconnect(&self, node: &str, session: u64) {
        let groups = {
            // Held to the end, so that a stream that replaces this one at the same time has the last word.
            let Some(mut entry) = self.nodes.get_mut(node) else {
                return;
            };
            if entry
                .session
                .as_ref()
                .is_none_or(|(current, _)| *current != session)
            {
                return;
            }
            entry.session = None;
            self.unlink(node, &entry.workers);
            entry.workers.values().cloned().collect()
        };
        self.notify(&groups);
    }

    /// Workers whose state changed.
    pub fn report(&self, node: &str, workers: Vec<pb::WorkerState>) {
        let touched = self.store(node, workers);
        self.notify(&touched);
    }

    fn store(&self, node: &str, workers: Vec<pb::WorkerState>) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        for state in workers {
            let pod = state.pod_name.clone();
            self.rivals.note(Epoch(state.epoch));
            let Some(reported) = convert::report_from(node, state) else {
                tracing::warn!(node, pod, "a worker state without identity or phase is ignored");
                continue;
            };
            if !self.remember(node, &reported) {
                tracing::warn!(
                    node,
                    pod,
                    limit = WORKERS_PER_NODE,
                    "the node reports more workers than are kept"
                );
                continue;
            }
            let Reported {
                group,
                incarnation,
                report,
                revision,
            } = reported;
            let state = self.group(&group);
            let mut inner = state.lock();
            let key = (node.to_owned(), incarnation);
            if !inner.reports.contains_key(&key) {
                // The node may have forgotten the group with the last pod of it, just after it was told: it is told again.
                inner.published.remove(node);
            }
            // Equal is accepted: a repeated state ends an Unlinked of our own making.
            if inner
                .reports
                .get(&key)
                .is_none_or(|(known, _, _)| *known <= revision)
            {
                inner.reports.insert(key, (revision, report, Instant::now()));
                touched.insert(group);
            }
        }
        touched
    }

    fn remember(&self, node: &str, reported: &Reported) -> bool {
        let mut entry = self.nodes.entry(node.to_owned()).or_default();
        if entry.workers.len() >= WORKERS_PER_NODE && !entry.workers.contains_key(&reported.incarnation) {
            return false;
        }
        entry
            .workers
            .insert(reported.incarnation.clone(), reported.group.clone());
        true
    }

    fn unlink(&self, node: &str, workers: &BTreeMap<Incarnation, String>) {
        for (incarnation, group) in workers {
            let Some(state) = self.groups.get(group) else {
                continue;
            };
            if let Some((_, report, _)) = state
                .lock()
                .reports
                .get_mut(&(node.to_owned(), incarnation.clone()))
                && !matches!(report.phase, Phase::Done | Phase::Lost(_))
            {
                report.phase = Phase::Unlinked;
            }
        }
    }

    fn notify(&self, groups: &BTreeSet<String>) {
        for uid in groups {
            if let Some(group) = self.groups.get(uid) {
                group.changed.notify_one();
            }
        }
    }

    /// A node was heard of: groups with pods there may be waiting for just that, even where it reports nothing.
    fn notify_all_of(&self, node: &str, touched: &BTreeSet<String>) {
        for group in self.groups.iter() {
            if touched.contains(group.key()) || group.lock().claimed {
                group.changed.notify_one();
            }
        }
        tracing::debug!(node, groups = touched.len(), "snapshot taken");
    }
}

/// A group task's side of the registry. Dropping it tells the nodes nothing: workers run on.
pub struct GroupLink {
    uid: String,
    registry: Arc<Registry>,
    state: Arc<GroupState>,
}

impl GroupLink {
    /// The newest reports, by node and incarnation.
    #[must_use]
    pub fn reports(&self) -> Vec<(Incarnation, Report)> {
        let inner = self.state.lock();
        inner
            .reports
            .iter()
            .map(|((_, incarnation), (_, report, _))| (incarnation.clone(), report.clone()))
            .collect()
    }

    /// The status tells of a leader with this epoch.
    pub fn heard_of(&self, epoch: Epoch) {
        self.registry.rivals.note(epoch);
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

    /// Drops the reports of pods that are not in `pods` and of which nothing was heard for `silence`. A report may come before its pod does.
    pub fn forget_pods<V>(&self, pods: &BTreeMap<String, V>, silence: Duration) {
        let mut dropped = Vec::new();
        self.state
            .lock()
            .reports
            .retain(|(node, incarnation), (_, _, at)| {
                let keep = pods.contains_key(&incarnation.pod_uid) || at.elapsed() < silence;
                if !keep {
                    dropped.push((node.clone(), incarnation.clone()));
                }
                keep
            });
        self.registry.forget_workers(dropped);
    }

    /// Tells the group's nodes what is desired, each only what is new to it.
    pub fn publish(&self, published: &Published) {
        let mut inner = self.state.lock();
        let fresh = inner.by_node(&published.desired.fresh);
        let stale = inner.by_node(&published.desired.stale);
        let mut alone = inner.alone_by_node(&published.desired.alone);
        let messages: Vec<(String, Arc<pb::Group>)> = published
            .nodes
            .iter()
            .map(|node| {
                let on =
                    |named: &BTreeMap<String, Vec<Incarnation>>| named.get(node).cloned().unwrap_or_default();
                let group = convert::group_to(
                    &self.uid,
                    self.registry.epoch,
                    &published.desired,
                    &published.policy,
                    on(&fresh),
                    on(&stale),
                    alone.remove(node).unwrap_or_default(),
                );
                (node.clone(), Arc::new(group))
            })
            .collect();
        inner.published.retain(|node, _| published.nodes.contains(node));
        let news: Vec<_> = messages
            .into_iter()
            .filter(|(node, group)| inner.published.get(node).is_none_or(|old| old != group))
            .collect();
        for (node, group) in &news {
            inner.published.insert(node.clone(), Arc::clone(group));
        }
        drop(inner);
        for (node, group) in news {
            if let Some(outbox) = self.outbox(&node) {
                outbox.desired(group);
            }
        }
    }

    /// Tells the nodes that nobody looks after the group any more.
    pub fn forget(&self) {
        let published = std::mem::take(&mut self.state.lock().published);
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
        let mut inner = self.state.lock();
        inner.claimed = false;
        inner.unclaimed_since = Instant::now();
    }
}
