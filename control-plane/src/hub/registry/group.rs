//! What is kept of one group: what nodes have said of it, and what they are told.

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
    /// The nodes that the group's task looks at; `None`: it has not said.
    pub(super) nodes: Option<Arc<BTreeSet<String>>>,
    /// True if one of them has said hello since the group's task last looked. `hellos` says which,
    /// if the task has named its nodes.
    pub(super) met: bool,
    pub(super) hellos: BTreeSet<String>,
    pub(super) published: BTreeMap<String, Arc<pb::Group>>,
    /// What `published` was made of; `None`: it is to be made again.
    pub(super) said: Option<Published>,
    /// Nodes that are to be told again what was said.
    pub(super) again: BTreeSet<String>,
    /// The link of the task that looks after it, and since when none does.
    pub(super) owner: Option<u64>,
    pub(super) unclaimed_since: Instant,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            reports: Reports::default(),
            nodes: None,
            met: false,
            hellos: BTreeSet::new(),
            published: BTreeMap::new(),
            said: None,
            again: BTreeSet::new(),
            owner: None,
            unclaimed_since: Instant::now(),
        }
    }
}

impl Inner {
    /// Takes in what a node has reported. False: something newer is known.
    pub(super) fn take_in(&mut self, node: &str, reported: Reported, at: Instant) -> bool {
        let taken = self.reports.take_in(node, reported, at);
        if taken == Stored::First {
            // The node may have forgotten the group with the last pod of it, just after it was
            // told: it is told again.
            self.published.remove(node);
            if self.said.is_some() && !self.again.contains(node) {
                self.again.insert(node.to_owned());
            }
        }
        taken != Stored::Stale
    }

    /// Drops what a node has said of this worker.
    pub(super) fn drop_report(&mut self, node: &str, incarnation: &Incarnation) {
        if self.reports.forget(node, incarnation) {
            self.said = None;
        }
    }

    /// True if nobody looks after it, and nothing is kept of it.
    pub(super) fn is_nothing(&self) -> bool {
        self.owner.is_none() && self.reports.keys().next().is_none()
    }

    /// True if a pod of this namespace cannot be the group's, whatever its labels say. Belief does
    /// not depend on it: the API server shows whose pods there are. It only keeps reports of
    /// foreign pods out.
    pub(super) fn is_foreign(&self, namespace: &str) -> bool {
        let said = self.said.as_ref();
        let own = said.map_or("", |said| said.policy.namespace.as_str());
        !own.is_empty() && !namespace.is_empty() && own != namespace
    }

    /// True if the group's task may wait for this node.
    fn looks_at(&self, node: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }

    /// The node has said hello, and this group is `touched` by what it has said. True: its task may
    /// be waiting for just that.
    pub(super) fn meet(&mut self, node: &str, touched: bool) -> bool {
        let looks = self.looks_at(node);
        if looks && self.nodes.is_some() {
            self.hellos.insert(node.to_owned());
        }
        self.met |= looks || touched;
        touched || looks && self.owner.is_some()
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
    /// What the nodes need besides.
    pub policy: GroupPolicy,
    /// The nodes that hold pods of the group.
    pub nodes: Arc<BTreeSet<String>>,
}
