//! What a daemon says of its node's container runtime. For people and platforms: no restart is
//! decided by it.

use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{RestartLevel, UnixNanos};

/// A daemon that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Its node.
    pub node: String,
    /// Its version, as it says.
    pub version: String,
    /// The version of the protocol that its stream has.
    pub protocol: u32,
    /// What it has found, as it said last.
    pub health: Health,
}

/// The ways of a daemon to its container runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// By which containers without an agent are seen and killed.
    pub cri: Access,
    /// By which agents get into containers.
    pub nri: Access,
}

/// One way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// The daemon has not said it.
    #[default]
    Unknown,
    /// It is open, since then by the node's clock.
    Well(UnixNanos),
    /// It is not, since then, and why.
    Away(UnixNanos, String),
}

impl Health {
    /// The lowest level that a worker which starts on the node now can be restarted by; `None`: not
    /// known. Agents that pod templates bring along are found by either way.
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
