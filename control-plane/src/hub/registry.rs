//! Where sessions and group tasks meet: the newest report of every worker, and the newest desired
//! state of every group.
//!
//! Promises: of two streams of one node only the later one counts, from its Hello on. No report of
//! an earlier stream stands in its way. Locks are taken in one order: nodes, then groups.

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

/// Time from the beginning of a term in which the first daemon of a cluster connects, if there is
/// one. Daemons try at least every five seconds.
const ATTENDED_WITHIN: Duration = Duration::from_secs(10);

/// All groups and nodes that this replica knows.
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

/// How the reports of a new stream compare with earlier ones of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Revisions {
    /// Earlier revisions stay in force.
    Continue,
    /// Any report of the new stream is newer than all earlier ones.
    StartOver,
}

impl Registry {
    /// An empty registry of the leader with this epoch.
    #[must_use]
    pub fn new(epoch: Epoch) -> Arc<Self> {
        Self::noting(epoch, Arc::default())
    }

    /// The same, with the refusals to note implausible reports in.
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

    /// Resolves once it is certain that a higher epoch than the leader's was in use. Cancel-safe.
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

    /// The highest known epoch above the leader's, even if only one node reports it.
    #[must_use]
    pub fn other_epoch(&self) -> Option<Epoch> {
        self.epoch_tracker.highest()
    }

    /// Registers the number of connected daemons as a metric.
    pub fn count_in(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            registry.register(
                "lockstep_node_daemons_connected",
                "Node daemons that are connected to this replica while it leads",
                self.daemons.clone(),
            );
        });
    }

    /// Number of groups with any state.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of connected nodes.
    #[must_use]
    pub fn connected(&self) -> usize {
        usize::try_from(self.daemons.get()).unwrap_or_default()
    }

    /// The link for a group's task. There is one task per group: earlier links of the group stop
    /// working.
    #[must_use]
    pub fn claim(self: &Arc<Self>, uid: &str) -> GroupLink {
        let state = self.group(uid);
        let owner = self.links.fetch_add(1, Ordering::Relaxed);
        let mut inner = state.lock();
        inner.owner = Some(owner);
        inner.last_published = None;
        inner.nodes = None;
        drop(inner);
        GroupLink {
            uid: uid.to_owned(),
            owner,
            registry: Arc::clone(self),
            state,
        }
    }

    /// Drops the reports of groups that had no task for this long: their JobSets are gone, or not
    /// ours.
    pub fn sweep(&self, older_than: Duration) {
        let mut dropped = Vec::new();
        self.groups.retain(|_, state| {
            // A report that is being stored may hold it, and must not be lost.
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

    /// Drops nodes that have been away for this long and have no report in any group.
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
            tracing::debug!(node, "forgot a node that has been away for long");
            self.epoch_tracker.forget(&node);
        }
    }

    /// Drops workers that no group has a report of any longer. No group may be locked here: nodes
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

    /// Begins the session of a daemon that has sent its Hello. The snapshot is all that it knows.
    /// Workers that it no longer lists become unlinked; they are not lost.
    pub fn connect(
        &self,
        node: &str,
        outbox: &Arc<Outbox>,
        protocol: u32,
        snapshot: Vec<pb::WorkerState>,
    ) -> u64 {
        let (session, mut touched) = self.enter(node, outbox, protocol);
        touched.extend(self.store(node, session, snapshot));
        // If another stream has replaced this one meanwhile, its snapshot was not stored.
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.has_snapshot = true;
        }
        // Groups with pods there may wait for this Hello, even if it reports none of their workers.
        for group in self.groups.iter() {
            let mut inner = group.lock();
            let waits = inner.note_hello(node, touched.contains(group.key()));
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

    /// A stream takes over its node: all earlier reports become unlinked. Returns their groups.
    fn enter(&self, node: &str, outbox: &Arc<Outbox>, protocol: u32) -> (u64, BTreeSet<String>) {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        // Held until all are unlinked, so that a stream that replaces this one at the same time
        // comes last.
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

    /// Ends the session of a stream. Its workers run on, unlinked.
    pub fn disconnect(&self, node: &str, session: u64) {
        let groups = {
            // Held to the end, so that a stream that replaces this one at the same time comes last.
            let Some(mut entry) = self.nodes.get_mut(node) else {
                return;
            };
            if !entry.is_of(session) {
                return;
            }
            entry.session = None;
            entry.left = Some(Instant::now());
            self.daemons.dec();
            self.unlink(node, &entry.workers, Revisions::Continue);
            entry.groups()
        };
        self.notify(&groups);
    }

    /// Stores reports of workers. Those of a session that was replaced are ignored.
    pub fn report(&self, node: &str, session: u64, workers: Vec<pb::WorkerState>) {
        let touched = self.store(node, session, workers);
        self.notify(&touched);
    }

    fn store(&self, node: &str, session: u64, workers: Vec<pb::WorkerState>) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        // Held to the end, so that a stream that replaces this one at the same time comes last.
        let entry = self.nodes.get_mut(node);
        let Some(mut entry) = entry.filter(|entry| entry.is_of(session)) else {
            tracing::debug!(node, session, "ignored a report of a replaced stream");
            return touched;
        };
        let now = Instant::now();
        let mut last_epoch = None;
        let mut gone = Vec::new();
        let mut group: Option<(String, Arc<GroupState>)> = None;
        let refuse = |why: &ReportLimit| self.refusals.note(node, why.reason(), why);
        if workers.len() > WORKERS_PER_NODE {
            refuse(&ReportLimit::TooMany);
        }
        for state in workers.into_iter().take(WORKERS_PER_NODE) {
            // Mostly all workers of a node know the same epoch and are in one group.
            let epoch = Epoch(state.epoch);
            if last_epoch.replace(epoch) != Some(epoch)
                && let Err(claim) = self.epoch_tracker.note_node(node, epoch)
            {
                self.refusals.note(node, claim.reason(), &claim);
            }
            let reported = convert::report_from(node, state).and_then(|reported| {
                self.check_namespace(&reported)?;
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
            if state.lock().store(node, reported, now) && !touched.contains(uid) {
                touched.insert(uid.clone());
            }
        }
        drop(group);
        for (incarnation, group) in gone {
            self.drop_report(node, &incarnation, &group);
        }
        touched
    }

    /// Drops the report of a worker that had to make room, and its group if that is empty then.
    fn drop_report(&self, node: &str, incarnation: &Incarnation, group: &str) {
        if let Some(state) = self.groups.get(group) {
            state.lock().drop_report(node, incarnation);
        }
        self.groups.remove_if(group, |_, state| {
            Arc::strong_count(state) == 1 && state.lock().is_empty()
        });
    }

    /// Notes workers that the daemon no longer knows. Their last reports are kept while there is
    /// room.
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

    /// Checks that the pod is in the namespace of the group that it names, if that is known.
    fn check_namespace(&self, reported: &Reported) -> Result<(), ReportLimit> {
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
