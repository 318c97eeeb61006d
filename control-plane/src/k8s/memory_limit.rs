//! How much memory this process may take, and whether it has taken much of that.

use std::fs;
use std::sync::LazyLock;

/// The limit of its own cgroup, as a container sees it: of version 2, and of version 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// Bytes of a page, on every machine that the images run on.
const PAGE: usize = 4096;
/// What counts if nothing can be read: the limit of the chart.
const USUAL: usize = 1 << 30;

/// Bytes that this process may take: the limit of its container, or the machine's memory if that is
/// less or there is no limit. Read once.
#[must_use]
pub(crate) fn limit() -> usize {
    static LIMIT: LazyLock<usize> = LazyLock::new(read_limit);
    *LIMIT
}

/// A part of the memory that things of one kind may take together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// One of so many parts.
    pub(crate) parts: usize,
    /// Bytes that one of the things takes at most.
    pub(crate) each: usize,
}

impl Share {
    /// How many of the things fit into the share, if the process may take `memory` bytes.
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
    // What cannot be read is no reason to turn anybody away.
    statm
        .and_then(|text| taken_of(&text))
        .is_some_and(|taken| taken > limit() / 2)
}

/// Anonymous bytes in memory, by a process's `/proc/self/statm`: what is resident, without the
/// files that are mapped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_there_is_none() {
        for (text, limit) in [
            ("268435456\n", Some(268_435_456)),
            // As version 1 says that there is none: more than any machine has.
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
    fn the_machine_has_as_much_as_it_says() {
        let text = "MemTotal:       24561232 kB\nMemFree:          123 kB\n";
        assert_eq!(total_of(text), Some(24_561_232 * 1024));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!(limit() > 0);
    }

    #[test]
    fn what_is_taken_is_what_is_resident_without_files() {
        assert_eq!(taken_of("9000 300 100 50 0 700 0\n"), Some(200 * 4096));
        assert_eq!(taken_of("9000 100 300 50 0 700 0\n"), Some(0));
        for nonsense in ["", "9000", "9000 300", "9000 x 100"] {
            assert_eq!(taken_of(nonsense), None, "{nonsense:?}");
        }
        let own = fs::read_to_string("/proc/self/statm").unwrap();
        assert!(taken_of(&own).unwrap() > 0);
    }
}
