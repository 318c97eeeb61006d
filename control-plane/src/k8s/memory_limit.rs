//! How much memory this process may take, and whether it has taken much of that.

use std::fs;

#[cfg(test)]
mod tests;

/// The limit of its own cgroup, as a container sees it: of version 2, and of version 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// Bytes of a page, on every machine that the images run on.
const PAGE: usize = 4096;
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

/// Whether this process has taken more than half of what it may take: what each part of it may take adds up to more than there is, so that those whom nobody
/// knows wait for each other. Costs 10 us.
#[must_use]
pub(crate) fn is_half_taken() -> bool {
    let statm = fs::read_to_string("/proc/self/statm").ok();
    // What cannot be read is no reason to turn anybody away.
    statm
        .and_then(|text| taken_of(&text))
        .is_some_and(|taken| taken > limit() / 2)
}

/// Anonymous bytes in memory, by a process's `/proc/self/statm`: what is resident, without the files that are mapped.
fn taken_of(text: &str) -> Option<usize> {
    let mut fields = text.split_whitespace().skip(1);
    let mut pages = || fields.next()?.parse::<usize>().ok();
    let (resident, of_files) = (pages()?, pages()?);
    resident.saturating_sub(of_files).checked_mul(PAGE)
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
