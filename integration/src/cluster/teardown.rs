//! Removes an instance in any state.
//!
//! Every step starts from what exists, and can be repeated: after a crash at any point, the next
//! run finishes it. All processes are killed: first those that would start others (the kubelet and
//! containerd), then the rest.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::machine::kill_session;
use super::network::Network;
use super::process::{kill_until_gone, marked};
use super::state::{Lock, State, instances};
use super::{ClusterError, ProcessId, cgroup, instance_dir};

/// How long processes and control groups may take to end.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Removes the instance called `name`, if it exists.
pub fn down(name: &str) -> Result<(), ClusterError> {
    let lock = Lock::wait(name)?;
    down_locked(&instance_dir(name))?;
    lock.remove()
}

/// Removes every instance under the state root that no running process owns, and returns their
/// names. An instance that a test owns, or that is being started, stays.
pub fn down_unowned() -> Result<Vec<String>, ClusterError> {
    let mut done = Vec::new();
    for name in instances() {
        let owner = State::load(&instance_dir(&name)).and_then(|state| state.owner);
        if !owner.is_some_and(ProcessId::is_alive) {
            down(&name)?;
            done.push(name);
        }
    }
    Ok(done)
}

/// [`down`] for a caller that holds the lock.
pub(super) fn down_locked(dir: &Path) -> Result<(), ClusterError> {
    let daemons = State::load(dir).map(|state| state.daemons).unwrap_or_default();
    let network = Network::of(dir);

    let starters = || {
        daemons
            .iter()
            .filter(|daemon| {
                ["kubelet-", "containerd-"]
                    .iter()
                    .any(|prefix| daemon.name.starts_with(prefix))
            })
            .map(|daemon| daemon.process)
            .filter(|process| process.is_alive())
            .collect()
    };
    kill_until_gone(starters, TIMEOUT)?;
    // What runs in a machine has no mark.
    for machine in daemons
        .iter()
        .filter(|daemon| daemon.name.starts_with("machine-"))
    {
        kill_session(machine.process)?;
    }
    let all = || {
        let mut left: BTreeSet<ProcessId> = marked(dir);
        left.extend(
            daemons
                .iter()
                .map(|daemon| daemon.process)
                .filter(|process| process.is_alive()),
        );
        if let Some(network) = network {
            let group = network.host_link();
            left.extend(cgroup::processes(&group).into_iter().filter_map(ProcessId::of));
        }
        left
    };
    kill_until_gone(all, TIMEOUT)?;

    if let Some(network) = network {
        cgroup::remove(&network.host_link(), TIMEOUT)?;
        network.release()?;
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(ClusterError::io(dir)(error)),
        _ => Ok(()),
    }
}
