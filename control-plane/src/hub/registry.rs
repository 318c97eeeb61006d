//! Where sessions and group tasks meet: the newest report of every worker, the newest desired state
//! of every group.
//!
//! Promises: of two streams of one node only the later one speaks for it, from its Hello on;
//! nothing that was said before on another stream stands in its way. Locks are taken in one order:
//! nodes, then groups.

mod group;
mod link;
mod node;
mod reports;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use lockstep_core::restart::{Epoch, Incarnation};
use lockstep_proto::node::v1 as pb;
use prometheus_client::metrics::gauge::Gauge;

use super::convert::{self, Reported};
use super::epoch_tracker::EpochTracker;
use super::outbox::Outbox;
use super::refusals::Refusals;
use super::report_limits::{ReportLimit, WORKERS_PER_NODE};
use crate::telemetry::metrics::Metrics;
use group::GroupState;
pub use group::Published;
pub use link::{Changes, GroupLink, Unbelieved};
use node::Node;
use workers::Workers;

/// How long after the beginning of a term a cluster's first daemon has connected, if it has any:
/// they try at least every five seconds.
const ATTENDED_WITHIN: Duration = Duration::from_secs(10);

/// All groups and nodes that this replica knows of.
pub struct Registry {
    epoch: Epoch,
    began: Instant,
    epoch_tracker: EpochTracker,
    refusals: Arc<Refusals>,
    groups: DashMap<String, Arc<GroupState>>,
    nodes: DashMap<String, Node>,
    sessions: AtomicU64,
    links: AtomicU64,
    daemons: Gauge,
}

/// How a report is compared with earlier ones of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Revisions {
    GoOn,
    /// Each stream speaks for itself: what another one has said, with whatever revision, is not
    /// above it.
    StartOver,
}

impl Registry {
    /// An empty registry of the leader with this epoch.
    #[must_use]
    pub fn new(epoch: Epoch) -> Arc<Self> {
        Self::noting(epoch, Arc::default())
    }

    /// The same, and where reports that are not believed are noted.
    #[must_use]
    pub fn noting(epoch: Epoch, refusals: Arc<Refusals>) -> Arc<Self> {
        Arc::new(Self {
            epoch,
            began: Instant::now(),
            epoch_tracker: EpochTracker::new(epoch),
            refusals,
            groups: DashMap::new(),
            nodes: DashMap::new(),
            sessions: AtomicU64::new(0),
            links: AtomicU64::new(0),
            daemons: Gauge::default(),
        })
    }

    /// The leader's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Resolves once there is no doubt that a higher epoch than the leader's was in use.
    /// Cancel-safe.
    pub async fn outbid(&self) -> Epoch {
        self.epoch_tracker.outbid().await
    }

    /// True if a node has connected in this term. `Err`: none has, and it is too early to tell.
    ///
    /// # Errors
    /// How long to wait before asking again.
    pub fn is_attended(&self) -> Result<bool, Duration> {
        if self.sessions.load(Ordering::Relaxed) > 0 {
            return Ok(true);
        }
        match ATTENDED_WITHIN.checked_sub(self.began.elapsed()) {
            Some(left) if !left.is_zero() => Err(left),
            _ => Ok(false),
        }
    }

    /// The highest epoch above the leader's that anybody speaks of, even if nobody else says so.
    #[must_use]
    pub fn rival(&self) -> Option<Epoch> {
        self.epoch_tracker.highest()
    }

    /// Tells Prometheus how many daemons are connected.
    pub fn count_in(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "lockstep_node_daemons_connected",
                "Node daemons that are connected to this replica, which leads",
                self.daemons.clone(),
            );
        });
    }

    /// Groups that anything is kept of.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Nodes that are connected now.
    #[must_use]
    pub fn connected(&self) -> usize {
        usize::try_from(self.daemons.get()).unwrap_or_default()
    }

    /// The link of a group's task. There is one task per group: a link that was given out before
    /// hears and says nothing any more.
    #[must_use]
    pub fn claim(self: &Arc<Self>, uid: &str) -> GroupLink {
        let state = self.group(uid);
        let owner = self.links.fetch_add(1, Ordering::Relaxed);
        let mut inner = state.lock();
        inner.owner = Some(owner);
        inner.said = None;
        inner.nodes = None;
        drop(inner);
        GroupLink {
            uid: uid.to_owned(),
            owner,
            registry: Arc::clone(self),
            state,
        }
    }

    /// Drops what was reported of groups that no task has looked after for this long: their JobSets
    /// are not ours, or gone.
    pub fn sweep(&self, older_than: Duration) {
        let mut dropped = Vec::new();
        self.groups.retain(|_, state| {
            // A node that is being listened to may hold it: what it says must not be lost with it.
            let held = Arc::strong_count(state) > 1;
            let inner = state.lock();
            let keep = held || inner.owner.is_some() || inner.unclaimed_since.elapsed() < older_than;
            if !keep {
                let keys = inner.reports.keys();
                dropped.extend(keys.map(|(node, incarnation)| (node.to_owned(), incarnation.clone())));
            }
            keep
        });
        self.forget_workers(dropped);
    }

    /// Drops nodes that have been away for this time, and of which no group keeps a report.
    pub fn forget_nodes(&self, away: Duration) {
        let mut gone = Vec::new();
        self.nodes.retain(|name, node| {
            let keep = !node.is_gone(away);
            if !keep {
                gone.push(name.clone());
            }
            keep
        });
        for node in gone {
            tracing::debug!(node, "a node that has been away for long is forgotten");
            self.epoch_tracker.forget(&node);
        }
    }

    /// Workers that no group keeps reports of any more. Never called with a group locked: nodes
    /// come before groups.
    fn forget_workers(&self, workers: Vec<(String, Incarnation)>) {
        for (node, incarnation) in workers {
            if let Some(mut entry) = self.nodes.get_mut(&node) {
                entry.workers.forget(&incarnation);
            }
        }
    }

    fn group(&self, uid: &str) -> Arc<GroupState> {
        Arc::clone(&self.groups.entry(uid.to_owned()).or_default())
    }

    /// A daemon has said hello, and speaks this version of the protocol: its snapshot is what it
    /// knows. What it no longer lists is out of sight, not lost.
    pub fn connect(
        &self,
        node: &str,
        outbox: &Arc<Outbox>,
        protocol: u32,
        snapshot: Vec<pb::WorkerState>,
    ) -> u64 {
        let (session, mut touched) = self.enter(node, outbox, protocol);
        touched.extend(self.store(node, session, snapshot));
        // Where another stream has replaced this one meanwhile, nothing of it was stored.
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.told = true;
        }
        // Groups with pods there may be waiting for just that, even if it reports nothing.
        for group in self.groups.iter() {
            let mut inner = group.lock();
            let waits = inner.meet(node, touched.contains(group.key()));
            if let Some(desired) = inner.published.get(node) {
                outbox.desired(Arc::clone(desired));
            }
            drop(inner);
            if waits {
                group.changed.notify_one();
            }
        }
        tracing::debug!(node, groups = touched.len(), "snapshot taken");
        session
    }

    /// A stream takes its node over: nothing that was said before is in sight. Returns the groups
    /// concerned.
    fn enter(&self, node: &str, outbox: &Arc<Outbox>, protocol: u32) -> (u64, BTreeSet<String>) {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        // Held until all are out of sight, so that a stream that replaces this one at the same time
        // has the last word.
        let mut entry = self.nodes.entry(node.to_owned()).or_default();
        match entry.session.replace((session, Arc::clone(outbox))) {
            Some((_, old)) => old.close(),
            None => {
                self.daemons.inc();
            }
        }
        entry.protocol = protocol;
        self.unlink(node, &entry.workers, Revisions::StartOver);
        entry.workers.unlist_all();
        (session, entry.groups())
    }

    /// The stream has ended. Its workers run on, out of sight.
    pub fn disconnect(&self, node: &str, session: u64) {
        let groups = {
            // Held to the end, so that a stream that replaces this one at the same time has the
            // last word.
            let Some(mut entry) = self.nodes.get_mut(node) else {
                return;
            };
            if !entry.is_of(session) {
                return;
            }
            entry.session = None;
            entry.left = Some(Instant::now());
            self.daemons.dec();
            self.unlink(node, &entry.workers, Revisions::GoOn);
            entry.groups()
        };
        self.notify(&groups);
    }

    /// Workers whose state changed, as this session says. One that another has replaced has no say.
    pub fn report(&self, node: &str, session: u64, workers: Vec<pb::WorkerState>) {
        let touched = self.store(node, session, workers);
        self.notify(&touched);
    }

    fn store(&self, node: &str, session: u64, workers: Vec<pb::WorkerState>) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        // Held to the end, so that a stream that replaces this one at the same time has the last
        // word.
        let entry = self.nodes.get_mut(node);
        let Some(mut entry) = entry.filter(|entry| entry.is_of(session)) else {
            tracing::debug!(node, session, "a report of a stream that was replaced is ignored");
            return touched;
        };
        let now = Instant::now();
        let mut heard = None;
        let mut gone = Vec::new();
        let mut group: Option<(String, Arc<GroupState>)> = None;
        let refuse = |why: &ReportLimit| self.refusals.note(node, why.reason(), why);
        if workers.len() > WORKERS_PER_NODE {
            refuse(&ReportLimit::TooMany);
        }
        for state in workers.into_iter().take(WORKERS_PER_NODE) {
            // All of a node's workers have mostly heard of the same leader, and are mostly of one
            // group.
            let epoch = Epoch(state.epoch);
            if heard.replace(epoch) != Some(epoch)
                && let Err(claim) = self.epoch_tracker.said(node, epoch)
            {
                self.refusals.note(node, claim.reason(), &claim);
            }
            let reported = convert::report_from(node, state).and_then(|reported| {
                self.is_native(&reported)?;
                gone.extend(entry.workers.remember(&reported)?);
                Ok(reported)
            });
            let reported = match reported {
                Ok(reported) => reported,
                Err(why) => {
                    refuse(&why);
                    continue;
                }
            };
            let (uid, state) = match &group {
                Some((uid, state)) if *uid == reported.group => (uid, state),
                _ => {
                    let state = self.group(&reported.group);
                    let (uid, state) = group.insert((reported.group.clone(), state));
                    (&*uid, &*state)
                }
            };
            if state.lock().take_in(node, reported, now) && !touched.contains(uid) {
                touched.insert(uid.clone());
            }
        }
        drop(group);
        for (incarnation, group) in gone {
            self.drop_report(node, &incarnation, &group);
        }
        touched
    }

    /// Nothing is kept any more of a worker that had to make room, nor of its group if that was
    /// all there is.
    fn drop_report(&self, node: &str, incarnation: &Incarnation, group: &str) {
        if let Some(state) = self.groups.get(group) {
            state.lock().drop_report(node, incarnation);
        }
        self.groups.remove_if(group, |_, state| {
            Arc::strong_count(state) == 1 && state.lock().is_nothing()
        });
    }

    /// Workers that the daemon no longer knows, as this session says. What they said last is kept
    /// as long as there is room.
    pub fn gone(&self, node: &str, session: u64, workers: Vec<pb::Incarnation>) {
        let entry = self.nodes.get_mut(node);
        let Some(mut entry) = entry.filter(|entry| entry.is_of(session)) else {
            return;
        };
        for worker in workers.into_iter().take(WORKERS_PER_NODE) {
            if let Some(incarnation) = convert::incarnation_from(worker) {
                entry.workers.unlist(&incarnation);
            }
        }
    }

    /// Checks that the pod is in the namespace of the group that it names, as far as that is known.
    fn is_native(&self, reported: &Reported) -> Result<(), ReportLimit> {
        let group = self.groups.get(&reported.group);
        let is_foreign = group.is_some_and(|group| group.lock().is_foreign(&reported.namespace));
        if is_foreign {
            return Err(ReportLimit::OtherNamespace);
        }
        Ok(())
    }

    fn unlink(&self, node: &str, workers: &Workers, revisions: Revisions) {
        for (incarnation, group) in workers.iter() {
            if let Some(state) = self.groups.get(group) {
                state.lock().reports.unlink(node, incarnation, revisions);
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
}

#[cfg(test)]
mod tests;
