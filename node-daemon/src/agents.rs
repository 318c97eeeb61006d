//! The agents' side of the daemon: one Unix socket per pod, one task per connection.
//!
//! The socket tells which pod connects. The kernel tells which container: the peer's cgroup must be
//! that of the container it registers for.

pub mod connection;
pub mod convert;
pub mod hostkill;
pub mod peer;
pub mod refusals;
pub mod sockets;

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::warn;

use crate::worker::driver::Host;
use crate::worker::facts::HostKill;
use crate::worker::types::{ContainerId, PodUid};

/// What the driver has done on this node.
pub struct AgentHost {
    /// Kills processes that an agent may not kill.
    pub killer: hostkill::ProcKiller,
    /// The pods' sockets.
    pub sockets: Arc<sockets::Sockets>,
}

impl Host for AgentHost {
    fn kill(&self, ask: HostKill) {
        self.killer.kill(ask);
    }

    fn spare(&self, container: &ContainerId) {
        self.killer.spare(container);
    }

    fn pod_known(&self, pod: &PodUid) {
        if let Err(error) = self.sockets.ensure(pod) {
            warn!(%pod, %error, "cannot listen for the agents of a pod");
        }
    }

    fn pod_gone(&self, pod: &PodUid) {
        self.sockets.remove(pod);
    }

    fn pods_listed(&self, pods: &BTreeSet<PodUid>) {
        self.sockets.listed(pods);
    }
}
