//! Lines about standbys in the worker's log. Those about failures are few, since standbys are tried
//! again without end.

use super::process::Ready;
use crate::worker;

/// Most lines about standbys that are of no use.
const MAX_FAILURES: usize = 8;

/// The lines that were written already.
#[derive(Debug, Default)]
pub(super) struct Log {
    failures: Vec<String>,
}

impl Log {
    /// A standby is ready: writes one line for each attempt that it may begin. `parks` is true if
    /// the program has parked itself.
    pub(super) fn ready(ready: &Ready, parks: bool) {
        let what = if parks {
            "parked".to_owned()
        } else {
            format!("{} modules", ready.modules)
        };
        let mib = ready.memory_kib >> 10;
        worker::say(&format!(
            "a standby is ready for the next attempt: {what}, {mib} MiB"
        ));
    }

    /// A standby is of no use, for this reason.
    pub(super) fn failed(&mut self, reason: &str) {
        if let Some(line) = self.line(reason) {
            worker::say(&line);
        }
    }

    /// The reasons that were written.
    #[cfg(test)]
    pub(super) fn said(&self) -> &[String] {
        &self.failures
    }

    /// Each reason is written once.
    fn line(&mut self, reason: &str) -> Option<String> {
        if self.failures.len() >= MAX_FAILURES || self.failures.iter().any(|said| said == reason) {
            return None;
        }
        self.failures.push(reason.to_owned());
        let last = self.failures.len() == MAX_FAILURES;
        let more = if last {
            " (further reasons are not logged)"
        } else {
            ""
        };
        Some(format!("no standby for now: {reason}{more}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_said_once_and_are_few() {
        let mut log = Log::default();
        assert_eq!(log.line("x").as_deref(), Some("no standby for now: x"));
        assert_eq!(log.line("x"), None);
        let lines: Vec<String> = (0..20).filter_map(|at| log.line(&at.to_string())).collect();
        assert_eq!(lines.len(), MAX_FAILURES - 1);
        assert_eq!(
            lines.last().map(String::as_str),
            Some("no standby for now: 6 (further reasons are not logged)")
        );
        assert_eq!(log.line("x"), None);
    }
}
