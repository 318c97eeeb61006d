//! How much memory this process may take.

use std::fs;

#[cfg(test)]
mod tests;

/// The limit of its own cgroup (v2), as a container sees it.
const LIMIT: &str = "/sys/fs/cgroup/memory.max";
/// What counts where there is no limit: that of the chart.
const USUAL: usize = 1 << 30;

/// Bytes that this process may take: the limit of its container, or 1 GiB where there is none.
#[must_use]
pub(crate) fn limit() -> usize {
    fs::read_to_string(LIMIT).map_or(USUAL, |text| limit_of(&text))
}

fn limit_of(text: &str) -> usize {
    text.trim()
        .parse()
        .ok()
        .filter(|limit| *limit > 0)
        .unwrap_or(USUAL)
}
