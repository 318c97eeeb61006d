//! The daemons that are connected, and what they say of themselves and of their nodes.

use super::Registry;
use crate::hub::health::{Daemon, Health};

/// What the daemon of a node says of itself.
#[derive(Default)]
pub(super) struct Said {
    version: String,
    health: Health,
}

impl Registry {
    /// The daemon of this session has said hello, and this in it.
    pub fn introduced(&self, node: &str, session: u64, version: String, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.said = Said { version, health };
        }
    }

    /// The daemon of this session says this of its node now.
    pub fn found(&self, node: &str, session: u64, health: Health) {
        if let Some(mut entry) = self.nodes.get_mut(node).filter(|entry| entry.is_of(session)) {
            entry.said.health = health;
        }
    }

    /// Up to `most` daemons that are connected, by node, those after `after`; and whether there are more.
    #[must_use]
    pub fn daemons(&self, after: &str, most: usize) -> (Vec<Daemon>, bool) {
        let nodes = self.nodes.iter().filter(|node| node.session.is_some());
        let mut names: Vec<String> = nodes
            .map(|node| node.key().clone())
            .filter(|name| name.as_str() > after)
            .collect();
        names.sort_unstable();
        let more = names.len() > most;
        names.truncate(most);
        let daemons = names.into_iter().filter_map(|name| {
            // It may have gone since.
            let node = self.nodes.get(&name).filter(|node| node.session.is_some())?;
            Some(Daemon {
                version: node.said.version.clone(),
                protocol: node.protocol,
                health: node.said.health.clone(),
                node: name,
            })
        });
        (daemons.collect(), more)
    }
}
