//! What a daemon reports about its node's container runtime. It is for people and platforms; no
//! decision about a restart depends on it.

use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{RestartLevel, UnixNanos};

/// A connected daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Its node.
    pub node: String,
    /// Its version, as it reports it.
    pub version: String,
    /// The protocol version of its stream.
    pub protocol: u32,
    /// What it reported last.
    pub health: Health,
}

/// How a daemon reaches its container runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The interface to list and kill containers without an agent.
    pub cri: Access,
    /// The interface to put agents into containers.
    pub nri: Access,
}

/// The state of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// The daemon has not reported it.
    #[default]
    Unknown,
    /// It works, since that time by the node's clock.
    Well(UnixNanos),
    /// It does not work, since that time and for that reason.
    Away(UnixNanos, String),
}

impl Health {
    /// The lowest level at which a worker that starts on the node now can be restarted; `None`: not
    /// known. Either interface finds agents that come with pod templates.
    #[must_use]
    pub fn level(&self, agents: &Agents) -> Option<RestartLevel> {
        match (&self.nri, &self.cri, agents) {
            (Access::Well(_), _, _) | (_, Access::Well(_), Agents::ByTemplate(_)) => {
                Some(RestartLevel::Process)
            }
            (Access::Away(..), Access::Well(_), Agents::ByNode) => Some(RestartLevel::Container),
            (Access::Away(..), Access::Away(..), _) => Some(RestartLevel::Pod),
            (Access::Unknown, _, _) | (Access::Away(..), Access::Unknown, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_the_cheapest_whose_way_is_open() {
        let (unknown, well) = (|| Access::Unknown, || Access::Well(UnixNanos(1)));
        let away = || Access::Away(UnixNanos(2), "gone".to_owned());
        let by_template = Agents::ByTemplate("image".to_owned());
        for (nri, cri, by_node, with_template) in [
            (
                well(),
                well(),
                Some(RestartLevel::Process),
                Some(RestartLevel::Process),
            ),
            (
                well(),
                away(),
                Some(RestartLevel::Process),
                Some(RestartLevel::Process),
            ),
            (
                well(),
                unknown(),
                Some(RestartLevel::Process),
                Some(RestartLevel::Process),
            ),
            (
                away(),
                well(),
                Some(RestartLevel::Container),
                Some(RestartLevel::Process),
            ),
            (away(), away(), Some(RestartLevel::Pod), Some(RestartLevel::Pod)),
            (away(), unknown(), None, None),
            (unknown(), well(), None, Some(RestartLevel::Process)),
            (unknown(), away(), None, None),
            (unknown(), unknown(), None, None),
        ] {
            let health = Health { cri, nri };
            assert_eq!(health.level(&Agents::ByNode), by_node, "{health:?}");
            assert_eq!(health.level(&by_template), with_template, "{health:?}");
        }
    }
}
