//! The control groups of an instance: `/lockstep<slot>/<node>` in every hierarchy.
//!
//! Works with cgroup v1, v1 beside v2, and v2. All processes of containers are in these groups, so
//! they also serve to find the last process of an instance.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::ClusterError;

/// Controllers that the kubelet needs, which are passed down in a v2 hierarchy.
const V2_CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];

/// Creates the group `path` (such as `lockstep0/node-1`) in every hierarchy.
pub(super) fn create(path: &str) -> Result<(), ClusterError> {
    for root in hierarchies() {
        let mut group = root.clone();
        for part in path.split('/') {
            pass_controllers_down(&group);
            let parent = group.clone();
            group.push(part);
            if !group.exists() {
                fs::create_dir(&group).map_err(ClusterError::io(&group))?;
            }
            inherit_cpuset(&parent, &group);
        }
    }
    Ok(())
}

/// Every process in the group `path` or below it, in any hierarchy.
pub(super) fn processes(path: &str) -> BTreeSet<Pid> {
    let mut found = BTreeSet::new();
    for root in hierarchies() {
        for group in subtree(&root.join(path)) {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            found.extend(
                listed
                    .lines()
                    .filter_map(|line| line.parse().ok())
                    .map(Pid::from_raw),
            );
        }
    }
    found
}

/// Removes the group `path` with all groups below it. Waits up to `timeout` for processes that are
/// still ending.
pub(super) fn remove(path: &str, timeout: Duration) -> Result<(), ClusterError> {
    let deadline = Instant::now() + timeout;
    for root in hierarchies() {
        for group in subtree(&root.join(path)).iter().rev() {
            while let Err(error) = fs::remove_dir(group) {
                if !group.exists() {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(ClusterError::io(group)(error));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    Ok(())
}

/// Where the hierarchies are mounted.
pub(super) fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    parse_mounts(&mounts)
}

/// The mount points of type cgroup and cgroup2 in a mount table.
pub(super) fn parse_mounts(mounts: &str) -> Vec<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup" || kind == "cgroup2").then(|| PathBuf::from(point))
        })
        .collect()
}

/// `group` and all groups below it, parents first.
fn subtree(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if group.is_dir() {
        found.push(group.to_owned());
    }
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned() {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        next += 1;
    }
    found
}

/// v2: children have only the controllers that their parent passes down. If one cannot be passed
/// down, the kubelet reports it.
fn pass_controllers_down(parent: &Path) {
    let control = parent.join("cgroup.subtree_control");
    if control.exists() {
        for controller in V2_CONTROLLERS {
            fs::write(&control, format!("+{controller}")).ok();
        }
    }
}

/// v1: a new cpuset has no CPUs and no memory nodes until they are set.
fn inherit_cpuset(parent: &Path, group: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let inherited = fs::read_to_string(parent.join(file)).unwrap_or_default();
        if fs::read_to_string(group.join(file)).is_ok_and(|own| own.trim().is_empty()) {
            fs::write(group.join(file), inherited.trim()).ok();
        }
    }
}
