//! What is kept of one node: its stream, and what its daemon has said.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::daemons;
use super::workers::Workers;
use crate::hub::outbox::Outbox;

#[derive(Default)]
pub(super) struct Node {
    pub(super) session: Option<(u64, Arc<Outbox>)>,
    /// The version of the protocol that its last stream has.
    pub(super) protocol: u32,
    /// True if a snapshot of its daemon was taken in: workers that it does not name are out of its
    /// sight.
    pub(super) told: bool,
    /// What its daemon has said of itself on that stream.
    pub(super) said: daemons::DaemonInfo,
    /// How many agents its daemon has refused, as it said last on whatever stream.
    pub(super) refused_agents: u32,
    /// Of which a group keeps a report, on whatever stream it has come.
    pub(super) workers: Workers,
    /// Since when it has no session.
    pub(super) left: Option<Instant>,
}

impl Node {
    /// True if this session is its present one.
    pub(super) fn is_of(&self, session: u64) -> bool {
        self.session
            .as_ref()
            .is_some_and(|(current, _)| *current == session)
    }

    /// True if it has been away for this time, and no report of it is kept.
    pub(super) fn is_gone(&self, away: Duration) -> bool {
        let left = self.left.is_some_and(|left| left.elapsed() >= away);
        left && self.session.is_none() && self.workers.is_empty()
    }

    /// The groups that keep reports of its workers.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        self.workers.iter().map(|(_, group)| group.to_owned()).collect()
    }
}
