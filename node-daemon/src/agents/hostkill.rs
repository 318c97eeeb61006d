//! Kills the processes of a container from the host, where its agent may not: root without CAP_KILL cannot signal a child of another uid.
//!
//! What dies is what descends from the agent and is in the container's cgroup. Sessions of `kubectl exec` live: their parent is the shim.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracing::{debug, info, warn};

use super::peer::in_container;
use crate::worker::types::ContainerId;

/// Looks at the processes again this often, because a process may fork while it is being killed.
const ROUNDS: usize = 100;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Kills by `/proc`.
#[derive(Debug, Clone)]
pub struct ProcKiller {
    proc_root: PathBuf,
    busy: Arc<Mutex<BTreeSet<ContainerId>>>,
}

impl ProcKiller {
    /// `proc_root` is `/proc`, or what stands in for it.
    #[must_use]
    pub fn new(proc_root: PathBuf) -> Self {
        Self {
            proc_root,
            busy: Arc::default(),
        }
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, BTreeSet<ContainerId>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill_all(&self, container: &ContainerId, agent: i32) {
        for round in 0..ROUNDS {
            let doomed = descendants(&processes(&self.proc_root, container), agent);
            if doomed.is_empty() {
                info!(%container, rounds = round, "no process is left beside the agent");
                return;
            }
            for pid in doomed {
                if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    debug!(%container, pid, %error, "not killed: gone by itself?");
                }
            }
            std::thread::sleep(PAUSE);
        }
        warn!(%container, "processes are left beside the agent");
    }

    /// Starts killing everything in the container but its agent; returns at once. A second call while the first is at work does nothing.
    pub fn kill(&self, container: ContainerId, agent_pid: i32) {
        if !self.busy().insert(container.clone()) {
            return;
        }
        let killer = self.clone();
        drop(tokio::task::spawn_blocking(move || {
            killer.kill_all(&container, agent_pid);
            killer.busy().remove(&container);
        }));
    }
}

/// The live processes of a container, with their parents.
fn processes(proc_root: &Path, container: &ContainerId) -> BTreeMap<i32, i32> {
    let Ok(entries) = fs::read_dir(proc_root) else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let entry = proc_root.join(pid.to_string());
            let stat = fs::read_to_string(entry.join("stat")).ok()?;
            let parent = live_parent(&stat)?;
            let cgroup = fs::read_to_string(entry.join("cgroup")).ok()?;
            in_container(&cgroup, container).then_some((pid, parent))
        })
        .collect()
}

/// The parent, from `/proc/<pid>/stat`; none for a zombie. The command in parentheses may hold anything, so its last `)` counts.
fn live_parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

/// All processes below `agent`, itself excluded.
fn descendants(parents: &BTreeMap<i32, i32>, agent: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    loop {
        let more: Vec<i32> = parents
            .iter()
            .filter(|(pid, parent)| **pid != agent && (**parent == agent || found.contains(*parent)))
            .map(|(pid, _)| *pid)
            .filter(|pid| !found.contains(pid))
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0f6c1c8b8a4c4f6fb8f05f6f1c8b8a4c";

    #[test]
    fn what_descends_from_the_agent_dies_and_exec_sessions_live() {
        // 10 agent, 11 worker, 12 its child, 13 orphan taken over by the agent; 20 exec session of shim 5, 21 its child.
        let parents = BTreeMap::from([(10, 5), (11, 10), (12, 11), (13, 10), (20, 5), (21, 20)]);
        assert_eq!(descendants(&parents, 10), BTreeSet::from([11, 12, 13]));
        assert_eq!(descendants(&parents, 99), BTreeSet::new());
    }

    #[test]
    fn a_command_may_look_like_anything() {
        assert_eq!(live_parent("7 (a) S 3 (b) R 42 7 7 0"), Some(42));
        assert_eq!(live_parent("7 (x) Z 42 7"), None);
        assert_eq!(live_parent("nonsense"), None);
    }

    #[test]
    fn only_processes_of_the_container_count() {
        let dir = tempfile::tempdir().unwrap();
        let add = |pid: &str, stat: &str, cgroup: &str| {
            fs::create_dir(dir.path().join(pid)).unwrap();
            fs::write(dir.path().join(pid).join("stat"), stat).unwrap();
            fs::write(dir.path().join(pid).join("cgroup"), cgroup).unwrap();
        };
        add("10", "10 (agent) S 5 1", &format!("0::/pod/{ID}\n"));
        add("11", "11 (w) S 10 1", &format!("0::/pod/{ID}\n"));
        add("12", "12 (w) S 10 1", "0::/elsewhere\n");
        fs::create_dir(dir.path().join("sys")).unwrap();
        let found = processes(dir.path(), &ContainerId::from(ID));
        assert_eq!(found, BTreeMap::from([(10, 5), (11, 10)]));
    }

    #[tokio::test]
    async fn a_real_process_tree_is_killed() {
        // The test itself stands for the agent; a copy of its own cgroup file with the id added stands for the container.
        let mut child = tokio::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let entry = dir.path().join(pid.to_string());
        fs::create_dir(&entry).unwrap();
        fs::write(entry.join("stat"), format!("{pid} (sleep) S 4242 1")).unwrap();
        fs::write(entry.join("cgroup"), format!("0::/pod/{ID}\n")).unwrap();
        let killer = ProcKiller::new(dir.path().to_owned());
        killer.kill(ContainerId::from(ID), 4242);
        let status = child.wait().await.unwrap();
        fs::remove_dir_all(&entry).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
