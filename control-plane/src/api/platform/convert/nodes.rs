//! A node's daemon on the wire.

use lockstep_core::jobset::in_place::Agents;
use lockstep_proto::platform::v1 as pb;

use crate::hub::{Access, Daemon};

/// What a daemon says of its node, and what follows from it where agents come into pods in this way.
pub(in crate::api::platform) fn node(daemon: Daemon, agents: &Agents) -> pb::Node {
    let level = daemon.health.level(agents);
    pb::Node {
        name: daemon.node,
        daemon_version: daemon.version,
        protocol: daemon.protocol,
        level: level.map(|level| level.as_str().to_owned()).unwrap_or_default(),
        cri: Some(access(daemon.health.cri)),
        nri: Some(access(daemon.health.nri)),
    }
}

fn access(access: Access) -> pb::RuntimeAccess {
    use pb::RuntimeAccessState as State;
    let (state, since, detail) = match access {
        Access::Unknown => (State::Unspecified, 0, String::new()),
        Access::Well(since) => (State::Well, since.0, String::new()),
        Access::Away(since, why) => (State::Away, since.0, why),
    };
    pb::RuntimeAccess {
        state: state.into(),
        since_unix_nanos: since,
        detail,
    }
}
