//! A group's view of the registry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_core::restart::{Epoch, Incarnation, Report};
use lockstep_proto::NODE_PROTOCOL_ALONE;
use lockstep_proto::node::v1 as pb;

use super::{GroupState, Published, Registry};
use crate::hub::convert;
use crate::hub::session::Outbox;

/// A group task's side of the registry. Dropping it tells the nodes nothing: workers run on.
pub struct GroupLink {
    pub(super) uid: String,
    pub(super) registry: Arc<Registry>,
    pub(super) state: Arc<GroupState>,
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
