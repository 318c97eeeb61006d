//! Daemons of a node that die and come back, as under a service manager.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::process::{Enter, ProcessId};
use super::state::State;
use super::{Cluster, ClusterError, lock};
use crate::wait::until;

/// How long a daemon may take to end, or to be started again.
const PATIENCE: Duration = Duration::from_secs(30);

impl Cluster {
    /// Kills a daemon of a node, such as `kubelet-1`, with SIGKILL and starts it again with the same arguments. Does not wait until it
    /// serves.
    pub async fn restart_daemon(&mut self, name: &str) -> Result<(), ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added some.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        let index = name.rsplit_once('-').and_then(|(_, index)| index.parse().ok());
        let index = index.ok_or_else(|| ClusterError::Invalid(format!("{name} is no daemon of a node")))?;
        let old = self.daemon(name).ok_or(ClusterError::NoNode(index))?;
        let args = command_line(old)?;
        old.signal(Signal::SIGKILL);
        until(format!("{name} has ended"), PATIENCE, async || {
            (!old.is_alive()).then_some(())
        })
        .await?;

        let mut words = args.iter();
        let mut command = Enter::Node(self.holder(index)?).command(words.next().cloned().unwrap_or_default());
        command.args(words);
        let new = self.launcher().start(name, &command)?;
        for daemon in &mut self.state.daemons {
            if daemon.name == name {
                daemon.process = new;
            }
        }
        self.state.save(&self.dir)?;
        // What starts it has other arguments.
        until(format!("{name} is started again"), PATIENCE, async || {
            command_line(new).is_ok_and(|now| now == args).then_some(())
        })
        .await?;
        Ok(())
    }
}

/// The command line of a process.
fn command_line(process: ProcessId) -> Result<Vec<OsString>, ClusterError> {
    let path = PathBuf::from(format!("/proc/{}/cmdline", process.pid));
    let line = fs::read(&path).map_err(ClusterError::io(&path))?;
    let words = line
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()));
    let mut words: Vec<_> = words.collect();
    // The last one is ended, not followed, by a zero.
    words.pop();
    Ok(words)
}
