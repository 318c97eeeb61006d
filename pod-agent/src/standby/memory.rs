//! How much memory the container may still use, by its cgroup.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a container sees its own cgroup.
const ROOT: &str = "/sys/fs/cgroup";

/// The memory of a container.
#[derive(Debug)]
pub(super) struct Memory(PathBuf);

impl Memory {
    /// That of this container.
    pub(super) fn own() -> Self {
        Self::at(Path::new(ROOT))
    }

    /// That of the cgroup whose files are in this folder.
    pub(super) fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// KiB that the container may still use before its limit; none if it has no limit, or none that
    /// can be read. Pages of files that the kernel can drop count as free.
    pub(super) fn room_kib(&self) -> Option<u64> {
        room_at(&self.0)
    }

    /// Says why no standby can be started that needs this much, if that is so. Twice as much has to
    /// be left.
    pub(super) fn may_take(&self, size_kib: u64) -> Result<(), String> {
        let needed = 2 * size_kib;
        if self.room_kib().is_some_and(|room| room < needed) {
            let needed = needed >> 10;
            return Err(format!(
                "the container's memory limit leaves less than {needed} MiB"
            ));
        }
        Ok(())
    }

    /// True if less than this is left.
    pub(super) fn is_short_beside(&self, size_kib: u64) -> bool {
        self.room_kib().is_some_and(|room| room < size_kib)
    }
}

/// Why a standby was ended while little memory was left, for people.
pub(super) const SHORT: &str = "the container's memory is short";

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
    fn a_process_has_memory_and_a_missing_one_none() {
        assert!(resident_kib(std::process::id().cast_signed()) > 100);
        assert_eq!(resident_kib(-5), 0);
    }
}
