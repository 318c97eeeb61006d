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
    /// The protocol version of its last stream.
    pub(super) protocol: u32,
    /// Set once a snapshot of its daemon was stored. The daemon does not see workers that the
    /// snapshot lacks.
    pub(super) has_snapshot: bool,
    /// What its daemon has reported about itself on that stream.
    pub(super) daemon: DaemonInfo,
    /// How many agents its daemon has refused, as it reported last on any stream.
    pub(super) refused_agents: u32,
    /// Its workers with a report in a group, from any stream.
    pub(super) workers: Workers,
    /// Since when it has no session.
    pub(super) left: Option<Instant>,
}

impl Node {
    /// True if this is its current session.
    pub(super) fn is_of(&self, session: u64) -> bool {
        self.session
            .as_ref()
            .is_some_and(|(current, _)| *current == session)
    }

    /// True if it has been away for this long, and no report of it is kept.
    pub(super) fn is_gone(&self, away: Duration) -> bool {
        let left = self.left.is_some_and(|left| left.elapsed() >= away);
        left && self.session.is_none() && self.workers.is_empty()
    }

    /// The groups that keep reports of its workers.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        self.workers.iter().map(|(_, group)| group.to_owned()).collect()
    }
}

/// What the daemon of a node reports about itself.
#[derive(Default)]
pub(super) struct DaemonInfo {
    version: String,
    health: Health,
}

impl Registry {
    /// Stores what the daemon of this session has reported in its Hello.
    pub fn set_daemon(&self, node: &str, session: u64, version: String, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.daemon = DaemonInfo { version, health };
        }
    }

    /// Stores what the daemon of this session reports about its node.
    pub fn set_health(&self, node: &str, session: u64, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.daemon.health = health;
        }
    }

    /// Counts the agents that the daemon of this session has refused. `agents` is its total since
    /// it started; a replica counts the increase.
    pub fn count_refused_agents(&self, node: &str, session: u64, agents: u32) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            // A daemon that was restarted counts from 0.
            let more = agents.checked_sub(entry.refused_agents).unwrap_or(agents);
            entry.refused_agents = agents;
            self.refusals.agents(more);
        }
    }

    /// Why the daemon of this node cannot put agents into containers, if it is connected and
    /// reports a reason.
    #[must_use]
    pub fn why_without_agents(&self, node: &str) -> Option<String> {
        let node = self.nodes.get(node).filter(|node| node.session.is_some())?;
        match &node.daemon.health.nri {
            Access::Away(_, why) => Some(why.clone()),
            Access::Unknown | Access::Well(_) => None,
        }
    }

    /// Up to `most` connected daemons, ordered by node, from after the node `after`. The second
    /// value is the node after which the next page begins, if there is one.
    #[must_use]
    pub fn daemons(&self, after: &str, most: usize) -> (Vec<Daemon>, Option<String>) {
        let nodes = self.nodes.iter().filter(|node| node.session.is_some());
        let names = nodes
            .map(|node| node.key().clone())
            .filter(|name| name.as_str() > after);
        page(names.collect(), most, |name| {
            let node = self.nodes.get(&name).filter(|node| node.session.is_some())?;
            Some(Daemon {
                version: node.daemon.version.clone(),
                protocol: node.protocol,
                health: node.daemon.health.clone(),
                node: name,
            })
        })
    }
}

/// The first `most` of these, and the name after which there are more. An entry that has gone
/// meanwhile is left out; its name may still end the page.
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
