//! How much memory this process may take.

use std::fs;

#[cfg(test)]
mod tests;

/// The limit of its own cgroup, as a container sees it: of version 2, and of version 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// What counts where nothing can be read: the limit of the chart.
const USUAL: usize = 1 << 30;

/// Bytes that this process may take: the limit of its container, or the machine's memory where that is less or there is none.
#[must_use]
pub(crate) fn limit() -> usize {
    let limits = LIMITS.iter().filter_map(|path| fs::read_to_string(path).ok());
    let limit = limits.filter_map(|text| limit_of(&text)).min();
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| total_of(&text));
    limit.into_iter().chain(machine).min().unwrap_or(USUAL)
}

/// The limit of a cgroup; `None`: it has none.
fn limit_of(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|limit| *limit > 0)
}

/// The machine's memory, by its `/proc/meminfo`.
fn total_of(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
