//! The state of one node: its stream, its workers, and what its daemon reports about itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Registry;
use super::workers::Workers;
use crate::hub::health::{Access, Daemon, Health};
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
    pub(super) said: DaemonInfo,
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

/// What the daemon of a node says of itself.
#[derive(Default)]
pub(super) struct DaemonInfo {
    version: String,
    health: Health,
}

impl Registry {
    /// The daemon of this session has said hello, and this in it.
    pub fn introduced(&self, node: &str, session: u64, version: String, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.said = DaemonInfo { version, health };
        }
    }

    /// The daemon of this session says this of its node now.
    pub fn found(&self, node: &str, session: u64, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.said.health = health;
        }
    }

    /// The daemon of this session has refused so many agents since it began. A replica counts what
    /// it has not heard of the node before.
    pub fn has_refused(&self, node: &str, session: u64, agents: u32) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            // One that was started again counts from 0.
            let more = agents.checked_sub(entry.refused_agents).unwrap_or(agents);
            entry.refused_agents = agents;
            self.refusals.agents(more);
        }
    }

    /// Why the daemon of this node cannot put agents into containers, if it is connected and
    /// says so.
    #[must_use]
    pub fn why_without_agents(&self, node: &str) -> Option<String> {
        let node = self.nodes.get(node).filter(|node| node.session.is_some())?;
        match &node.said.health.nri {
            Access::Away(_, why) => Some(why.clone()),
            Access::Unknown | Access::Well(_) => None,
        }
    }

    /// Up to `most` daemons that are connected, by node, those after `after`; and the node after
    /// which there are more, if there are.
    #[must_use]
    pub fn daemons(&self, after: &str, most: usize) -> (Vec<Daemon>, Option<String>) {
        let nodes = self.nodes.iter().filter(|node| node.session.is_some());
        let names = nodes
            .map(|node| node.key().clone())
            .filter(|name| name.as_str() > after);
        page(names.collect(), most, |name| {
            let node = self.nodes.get(&name).filter(|node| node.session.is_some())?;
            Some(Daemon {
                version: node.said.version.clone(),
                protocol: node.protocol,
                health: node.said.health.clone(),
                node: name,
            })
        })
    }
}

/// The first `most` of these, and the name after which there are more. What has gone since it was
/// named is left out, and ends no list: the last name counts, be it there or not.
fn page<T>(
    mut names: Vec<String>,
    most: usize,
    find: impl FnMut(String) -> Option<T>,
) -> (Vec<T>, Option<String>) {
    names.sort_unstable();
    let more = names.len() > most;
    names.truncate(most);
    let last = names.last().filter(|_| more).cloned();
    (names.into_iter().filter_map(find).collect(), last)
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn a_page_all_of_whose_nodes_have_gone_is_not_the_last_one() {
        let names = ["c", "a", "d", "b"].map(str::to_owned);
        let gone = |name: String| (name.as_str() > "b").then_some(name);
        let (found, next) = page(names.to_vec(), 2, gone);
        assert_eq!((found, next.as_deref()), (vec![], Some("b")));
        let (found, next) = page(names[..1].to_vec(), 2, gone);
        assert_eq!((found, next), (vec!["c".to_owned()], None));
    }
}
