//! The state of one group: the reports of its nodes, and what is published to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lockstep_core::restart::{Desired, Incarnation};
use lockstep_proto::node::v1 as pb;
use tokio::sync::Notify;

use super::reports::{Reports, Stored};
use crate::hub::convert::{GroupPolicy, Reported};

#[derive(Default)]
pub(super) struct GroupState {
    inner: Mutex<Inner>,
    pub(super) changed: Notify,
}

pub(super) struct Inner {
    pub(super) reports: Reports,
    /// The nodes that the group's task watches; `None`: it has not named them.
    pub(super) nodes: Option<Arc<BTreeSet<String>>>,
    /// Set if one of them has sent a Hello since the group's task last looked. `hellos` holds
    /// which, if the task has named its nodes.
    pub(super) has_hello: bool,
    pub(super) hellos: BTreeSet<String>,
    pub(super) published: BTreeMap<String, Arc<pb::Group>>,
    /// What `published` was made from; `None`: it has to be made again.
    pub(super) last_published: Option<Published>,
    /// Nodes to publish to again.
    pub(super) again: BTreeSet<String>,
    /// The link of the group's task, and since when there is none.
    pub(super) owner: Option<u64>,
    pub(super) unclaimed_since: Instant,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            reports: Reports::default(),
            nodes: None,
            has_hello: false,
            hellos: BTreeSet::new(),
            published: BTreeMap::new(),
            last_published: None,
            again: BTreeSet::new(),
            owner: None,
            unclaimed_since: Instant::now(),
        }
    }
}

impl Inner {
    /// Stores a report of a node. False if a newer one is known.
    pub(super) fn store(&mut self, node: &str, reported: Reported, at: Instant) -> bool {
        let stored = self.reports.store(node, reported, at);
        if stored == Stored::First {
            // The node may have forgotten the group with its last pod, just after the group was
            // published to it.
            self.published.remove(node);
            if self.last_published.is_some() && !self.again.contains(node) {
                self.again.insert(node.to_owned());
            }
        }
        stored != Stored::Stale
    }

    /// Drops a node's report of this worker.
    pub(super) fn drop_report(&mut self, node: &str, incarnation: &Incarnation) {
        if self.reports.forget(node, incarnation) {
            self.last_published = None;
        }
    }

    /// True if the group has neither a task nor a report.
    pub(super) fn is_empty(&self) -> bool {
        self.owner.is_none() && self.reports.keys().next().is_none()
    }

    /// True if a pod in this namespace cannot belong to the group, whatever its labels say. It only
    /// keeps reports of foreign pods out. Decisions use the pods that the API server shows.
    pub(super) fn is_foreign(&self, namespace: &str) -> bool {
        let published = self.last_published.as_ref();
        let own = published.map_or("", |published| published.policy.namespace.as_str());
        !own.is_empty() && !namespace.is_empty() && own != namespace
    }

    /// True if the group's task may wait for this node.
    fn watches(&self, node: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }

    /// Notes a Hello of the node, which reports workers of this group if `touched`. True if the
    /// group's task may wait for it.
    pub(super) fn note_hello(&mut self, node: &str, touched: bool) -> bool {
        let watches = self.watches(node);
        if watches && self.nodes.is_some() {
            self.hellos.insert(node.to_owned());
        }
        self.has_hello |= watches || touched;
        touched || watches && self.owner.is_some()
    }
}

impl GroupState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds this lock can leave it half-changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a group task publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// What all workers should be.
    pub desired: Desired,
    /// What the nodes need besides the desired state.
    pub policy: GroupPolicy,
    /// The nodes that hold pods of the group.
    pub nodes: Arc<BTreeSet<String>>,
}
