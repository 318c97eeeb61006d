//! A node that is lost, as by a power failure: every process of it ends at once, and its network goes with them. It does not come back.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use super::process::{ProcessId, all_pids, kill_until_gone};
use super::state::State;
use super::{Cluster, ClusterError, cgroup, lock, node};

/// How long processes and control groups may take to go.
const PATIENCE: Duration = Duration::from_secs(20);

impl Cluster {
    /// Kills everything on node `index`. The API server is not told: it finds out that the node does not report any more.
    pub async fn lose_node(&mut self, index: u8) -> Result<(), ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added some.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        let holder = self.holder(index)?;
        let group = node::cgroup_path(self.network()?, index);
        let path = format!("/proc/{holder}/ns/mnt");
        let mounts = fs::read_link(&path).map_err(ClusterError::io(path.as_ref()))?;
        // Daemons and shims have the node's own files, pods its control group.
        let all = || -> BTreeSet<ProcessId> {
            all_pids()
                .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|own| own == mounts))
                .chain(cgroup::processes(&group))
                .filter_map(ProcessId::of)
                .collect()
        };
        kill_until_gone(all, PATIENCE)?;
        cgroup::remove(&group, PATIENCE)?;
        self.state.remove_node(index);
        self.state.save(&self.dir)
    }
}
