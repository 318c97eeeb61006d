//! The memory limit of this process, and its use.

use std::fs;
use std::sync::LazyLock;

/// The cgroup limit as a container sees it, for version 2 and version 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// The size of a memory page on every platform that the images support.
const PAGE: usize = 4096;
/// The fallback if nothing can be read: the limit that the chart sets.
const USUAL: usize = 1 << 30;

/// The bytes that this process may take: the container's limit, or the machine's memory if that is
/// less or there is no limit. Read once.
#[must_use]
pub(crate) fn limit() -> usize {
    static LIMIT: LazyLock<usize> = LazyLock::new(read_limit);
    *LIMIT
}

/// A share of the memory for items of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The divisor: the share is one of this many parts.
    pub(crate) parts: usize,
    /// The most bytes that one item takes.
    pub(crate) each: usize,
}

impl Share {
    /// How many items fit into the share if the process may take `memory` bytes.
    #[must_use]
    pub(crate) const fn fits(self, memory: usize) -> usize {
        memory / self.parts / self.each
    }
}

fn read_limit() -> usize {
    let limits = LIMITS.iter().filter_map(|path| fs::read_to_string(path).ok());
    let limit = limits.filter_map(|text| limit_of(&text)).min();
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| total_of(&text));
    limit.into_iter().chain(machine).min().unwrap_or(USUAL)
}

/// True if this process uses more than half of its memory limit. The shares of its parts add up to
/// more than the limit, so unknown clients then wait for each other. Costs 10 us.
#[must_use]
pub(crate) fn is_half_taken() -> bool {
    let statm = fs::read_to_string("/proc/self/statm").ok();
    // An unreadable value is no reason to reject a client.
    statm
        .and_then(|text| taken_of(&text))
        .is_some_and(|taken| taken > limit() / 2)
}

/// Anonymous bytes in memory according to `/proc/self/statm`: the resident size without mapped
/// files.
fn taken_of(text: &str) -> Option<usize> {
    let mut fields = text.split_whitespace().skip(1);
    let mut pages = || fields.next()?.parse::<usize>().ok();
    let (resident, of_files) = (pages()?, pages()?);
    resident.saturating_sub(of_files).checked_mul(PAGE)
}

/// The limit of a cgroup; `None` if there is none.
fn limit_of(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|limit| *limit > 0)
}

/// The machine's memory according to `/proc/meminfo`.
fn total_of(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_fits_as_many_as_its_bytes_allow() {
        let share = Share {
            parts: 16,
            each: 32 << 10,
        };
        assert_eq!(share.fits(256 << 20), 512);
    }

    #[test]
    fn a_limit_is_a_number_or_there_is_none() {
        for (text, limit) in [
            ("268435456\n", Some(268_435_456)),
            // Version 1's way to say "no limit": more than any machine has.
            ("9223372036854771712\n", Some(9_223_372_036_854_771_712)),
            ("max\n", None),
            ("", None),
            ("0", None),
            ("-1", None),
        ] {
            assert_eq!(limit_of(text), limit, "{text:?}");
        }
    }

    #[test]
    fn the_memory_of_the_machine_is_parsed() {
        let text = "MemTotal:       24561232 kB\nMemFree:          123 kB\n";
        assert_eq!(total_of(text), Some(24_561_232 * 1024));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!(limit() > 0);
    }

    #[test]
    fn used_memory_is_resident_memory_without_files() {
        assert_eq!(taken_of("9000 300 100 50 0 700 0\n"), Some(200 * 4096));
        assert_eq!(taken_of("9000 100 300 50 0 700 0\n"), Some(0));
        for nonsense in ["", "9000", "9000 300", "9000 x 100"] {
            assert_eq!(taken_of(nonsense), None, "{nonsense:?}");
        }
        let own = fs::read_to_string("/proc/self/statm").unwrap();
        assert!(taken_of(&own).unwrap() > 0);
    }
}
