//! Faults: killed daemons that are started again, as by a service manager, and nodes that are lost,
//! as in a power failure.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::process::{Enter, all_pids, kill_until_gone};
use super::state::{Lock, State};
use super::{Cluster, ClusterError, Mode, ProcessId, cgroup, lock, node};
use crate::wait::until;

/// How long a daemon may take to end or to be restarted.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long processes and control groups of a lost node may take to end.
const LOSS: Duration = Duration::from_secs(20);

impl Cluster {
    /// Kills everything on node `index`, which does not come back. The API server notices only that
    /// the node no longer reports.
    pub async fn lose_node(&mut self, index: u8) -> Result<(), ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added some.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        let holder = self.holder(index)?;
        let group = node::cgroup_path(self.network()?, index);
        let path = format!("/proc/{holder}/ns/mnt");
        let mounts = fs::read_link(&path).map_err(ClusterError::io(path.as_ref()))?;
        // Daemons and shims are found by their mount namespace, and pods by their control group.
        let all = || -> BTreeSet<ProcessId> {
            all_pids()
                .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|own| own == mounts))
                .chain(cgroup::processes(&group))
                .filter_map(ProcessId::of)
                .collect()
        };
        kill_until_gone(all, LOSS)?;
        cgroup::remove(&group, LOSS)?;
        self.state.remove_node(index);
        self.state.save(&self.dir)
    }

    /// Kills a daemon of a node, such as `kubelet-1`, with SIGKILL, and starts it again with the
    /// same arguments. Does not wait until it serves. Returns its command line, for
    /// [`Cluster::keep_up`].
    pub async fn restart_daemon(&mut self, name: &str) -> Result<Vec<OsString>, ClusterError> {
        let args = self.kill_daemon(name).await?;
        self.start_daemon(name, &args).await?;
        Ok(args)
    }

    /// Kills any daemon with SIGKILL. Returns its command line, for [`Cluster::start_daemon`].
    pub async fn kill_daemon(&mut self, name: &str) -> Result<Vec<OsString>, ClusterError> {
        let _lock = self.locked().await?;
        let old = self.recorded(name)?;
        let args = command_line(old)?;
        old.signal(Signal::SIGKILL);
        until(format!("{name} has ended"), TIMEOUT, async || {
            (!old.is_alive()).then_some(())
        })
        .await?;
        Ok(args)
    }

    /// Starts a daemon that was killed. Does not wait until it serves.
    pub async fn start_daemon(&mut self, name: &str, args: &[OsString]) -> Result<(), ClusterError> {
        let _lock = self.locked().await?;
        self.start_again(name, args).await
    }

    /// Restarts a daemon of a node that has exited, as the kubelet does if containerd does not
    /// answer.
    pub async fn keep_up(&mut self, name: &str, args: &[OsString]) -> Result<(), ClusterError> {
        let _lock = self.locked().await?;
        if self.recorded(name)?.is_alive() {
            return Ok(());
        }
        self.start_again(name, args).await
    }

    /// The lock of the instance, whose record is read again.
    pub(super) async fn locked(&mut self) -> Result<Lock, ClusterError> {
        let lock = lock(&self.name).await?;
        // Another process may have added some.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        Ok(lock)
    }

    fn recorded(&self, name: &str) -> Result<ProcessId, ClusterError> {
        let none = || ClusterError::Invalid(format!("there is no daemon {name}"));
        self.daemon(name).ok_or_else(none)
    }

    /// The namespaces that the daemon runs in.
    fn place(&self, name: &str) -> Result<Enter, ClusterError> {
        Ok(match (index_of(name), self.mode()) {
            (Some(index), _) => Enter::Node(self.holder(index)?),
            (None, Mode::Nodes) => Enter::Network(self.control_plane()?),
            (None, Mode::ApiServer { .. }) => Enter::Nothing,
        })
    }

    async fn start_again(&mut self, name: &str, args: &[OsString]) -> Result<(), ClusterError> {
        let mut words = args.iter();
        let program = words.next().cloned().unwrap_or_default();
        let mut command = self.place(name)?.command(program);
        command.args(words);
        let new = self.launcher().start(name, &command)?;
        for daemon in &mut self.state.daemons {
            if daemon.name == name {
                daemon.process = new;
            }
        }
        self.state.save(&self.dir)?;
        // The launcher has other arguments than the daemon. The kubelet may have ended again before
        // it was seen: see `keep_up`.
        let may_end = name.starts_with("kubelet-");
        let ended = until(format!("{name} is started again"), TIMEOUT, async || {
            let is_it = command_line(new).is_ok_and(|now| now == args);
            (is_it || !new.is_alive()).then_some(!is_it)
        })
        .await?;
        if ended && !may_end {
            return Err(self.launcher().died(name));
        }
        Ok(())
    }
}

/// The number of the daemon's node, if it is on a node.
fn index_of(name: &str) -> Option<u8> {
    name.rsplit_once('-').and_then(|(_, index)| index.parse().ok())
}

/// The command line of a process.
fn command_line(process: ProcessId) -> Result<Vec<OsString>, ClusterError> {
    let path = PathBuf::from(format!("/proc/{}/cmdline", process.pid));
    let line = fs::read(&path).map_err(ClusterError::io(&path))?;
    let words = line
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()));
    let mut words: Vec<_> = words.collect();
    // The last argument is terminated by a zero, too.
    words.pop();
    Ok(words)
}
