//! How much memory the container may still use, by its cgroup and by what the node has left.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a container sees its own cgroup.
const ROOT: &str = "/sys/fs/cgroup";
/// What the whole node has.
const NODE: &str = "/proc/meminfo";

/// The memory of a container.
#[derive(Debug)]
pub(super) struct Memory {
    cgroup: PathBuf,
    node: PathBuf,
}

/// What is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    kib: u64,
    /// What leaves no more than this, for people.
    by: &'static str,
}

impl Memory {
    /// The memory of this container.
    pub(super) fn own() -> Self {
        Self {
            cgroup: ROOT.into(),
            node: NODE.into(),
        }
    }

    /// The memory of the cgroup whose files are in this folder, with the node's beside them.
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Self {
        Self {
            cgroup: root.to_owned(),
            node: root.join("meminfo"),
        }
    }

    /// What the container may still use before its limit, or before the node has nothing left.
    /// `None` if neither can be read.
    fn room(&self) -> Option<Room> {
        let by = |by| move |kib| Room { kib, by };
        let limit = room_at(&self.cgroup).map(by("the container's memory limit"));
        let node = available_at(&self.node).map(by("the node's memory"));
        limit.into_iter().chain(node).min_by_key(|room| room.kib)
    }

    /// The reason why no standby that needs this much can be started, if there is one. Twice as
    /// much must be left.
    pub(super) fn may_take(&self, size_kib: u64) -> Result<(), String> {
        let needed = size_kib.saturating_mul(2);
        match self.room() {
            Some(Room { kib, by }) if kib < needed => {
                Err(format!("{by} leaves less than {} MiB", needed >> 10))
            }
            _ => Ok(()),
        }
    }

    /// True if less than this is left.
    pub(super) fn is_short_beside(&self, size_kib: u64) -> bool {
        self.room().is_some_and(|room| room.kib < size_kib)
    }
}

/// Why a standby was ended while little memory was left, as a sentence.
pub(super) const SHORT: &str = "the container's memory is short";

/// What a cgroup's limit leaves, in KiB. `None` if it has no limit, or none that can be read. Pages
/// of files that the kernel can drop count as free.
fn room_at(root: &Path) -> Option<u64> {
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(root.join(name)).ok()?.trim().parse().ok() };
    let stat = |name: &str, key: &str| -> u64 {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    let (limit, used, cache) = if let Some(limit) = number("memory.max") {
        (
            limit,
            number("memory.current")?,
            stat("memory.stat", "inactive_file "),
        )
    } else {
        (
            // Without a limit, version 1 names a number beyond any machine's memory.
            number("memory/memory.limit_in_bytes")?,
            number("memory/memory.usage_in_bytes")?,
            stat("memory/memory.stat", "total_inactive_file "),
        )
    };
    Some(limit.saturating_sub(used.saturating_sub(cache)) / 1024)
}

/// What the node can still give without swapping, in KiB.
fn available_at(meminfo: &Path) -> Option<u64> {
    let text = fs::read_to_string(meminfo).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Resident memory of a process in KiB; 0 if it has gone.
pub(super) fn resident_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_the_limit_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(room_at(dir.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "1048576\n");
        write("memory.stat", "anon 1\ninactive_file 524288\n");
        assert_eq!(room_at(dir.path()), None);
        write("memory.max", "2097152\n");
        assert_eq!(room_at(dir.path()), Some(1536));
        write("memory.current", "9097152\n");
        assert_eq!(room_at(dir.path()), Some(0));
    }

    #[test]
    fn version_1_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("memory")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join("memory").join(name), text).unwrap();
        write("memory.limit_in_bytes", "2097152\n");
        write("memory.usage_in_bytes", "1048576\n");
        write("memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n");
        assert_eq!(room_at(dir.path()), Some(2048));
    }

    #[test]
    fn the_node_bounds_a_container_too() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::at(dir.path());
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(memory.may_take(1 << 40), Ok(()));
        write("meminfo", "MemTotal:  99999 kB\nMemAvailable:    8192 kB\n");
        assert_eq!(memory.may_take(4096), Ok(()));
        let refused = |size| memory.may_take(size).unwrap_err();
        assert_eq!(refused(5120), "the node's memory leaves less than 10 MiB");
        assert!(memory.is_short_beside(9000) && !memory.is_short_beside(8192));
        write("memory.max", "4194304");
        write("memory.current", "0");
        assert_eq!(
            refused(4096),
            "the container's memory limit leaves less than 8 MiB"
        );
    }

    /// A standby may say any number.
    #[test]
    fn no_size_is_too_large_to_be_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("meminfo"), "MemAvailable: 8192 kB\n").unwrap();
        assert!(Memory::at(dir.path()).may_take(u64::MAX).is_err());
    }

    #[test]
    fn a_process_has_memory_and_a_missing_one_none() {
        assert!(resident_kib(std::process::id().cast_signed()) > 100);
        assert_eq!(resident_kib(-5), 0);
    }
}
