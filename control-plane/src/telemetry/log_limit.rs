//! Rate limits for log lines that unauthenticated peers can trigger: each line once an hour, or a
//! few lines a second.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, RateLimit};
use tokio::time::Instant;

/// How long a key is not logged again.
pub(crate) const QUIET: Duration = Duration::from_secs(3600);
/// How many keys are remembered. While the table is full, other keys are not logged.
const REMEMBERED: usize = 4096;

/// Allows each key once an hour.
pub(crate) struct HourlyLimit<K>(Mutex<HashMap<K, Instant>>);

impl<K> Default for HourlyLimit<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> HourlyLimit<K> {
    /// True if the key should be logged now.
    pub(crate) fn is_new(&self, key: K) -> bool {
        let now = Instant::now();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= REMEMBERED {
            logged.retain(|_, at| now.duration_since(*at) < QUIET);
        }
        let known = logged.get(&key).is_some_and(|at| now.duration_since(*at) < QUIET);
        if known || logged.len() >= REMEMBERED {
            return false;
        }
        logged.insert(key, now);
        true
    }
}

/// The burst of log lines.
const LINES: u32 = 20;
/// The interval between lines after the burst.
const EACH: Duration = Duration::from_secs(1);

/// Limits lines that all differ, the first of which are all useful.
pub(crate) struct LineLimit(Mutex<LineBucket>);

struct LineBucket {
    limit: RateLimit,
    /// How many lines were suppressed and not reported yet.
    suppressed: u64,
    /// When that was last reported.
    reported: Option<Instant>,
}

impl Default for LineLimit {
    fn default() -> Self {
        Self::new(LINES, EACH)
    }
}

impl LineLimit {
    /// Allows `burst` lines at once, and one more per `every`.
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self(Mutex::new(LineBucket {
            limit: RateLimit::new(Rate { burst, every }),
            suppressed: 0,
            reported: None,
        }))
    }

    /// Takes a line if the limit allows it; returns how many lines were suppressed before it.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next_reporting(Duration::ZERO)
    }

    /// The same, but returns 0 if a number was returned less than `every` ago. A later call adds
    /// those lines.
    pub(crate) fn next_reporting(&self, every: Duration) -> Option<u64> {
        let mut left = self.left();
        if !left.limit.try_take() {
            left.suppressed += 1;
            return None;
        }
        if left.suppressed == 0 || left.reported.is_some_and(|at| at.elapsed() < every) {
            return Some(0);
        }
        left.reported = Some(Instant::now());
        Some(std::mem::take(&mut left.suppressed))
    }

    /// True if the whole burst is available.
    pub(crate) fn is_fresh(&self) -> bool {
        self.left().limit.is_full()
    }

    fn left(&self) -> MutexGuard<'_, LineBucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The beginning of an untrusted text, for a log line.
pub(crate) fn beginning(text: &str) -> &str {
    const MOST: usize = 1024;
    &text[..text.floor_char_boundary(MOST)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_is_new_once_an_hour() {
        let limit = HourlyLimit::default();
        assert!(limit.is_new("one"));
        assert!(!limit.is_new("one"));
        assert!(limit.is_new("another"));
        tokio::time::advance(QUIET).await;
        assert!(limit.is_new("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_remembered_than_fit() {
        let limit = HourlyLimit::default();
        for one in 0..2 * REMEMBERED {
            limit.is_new(one);
        }
        assert_eq!(limit.0.lock().unwrap().len(), REMEMBERED);
        tokio::time::advance(QUIET).await;
        assert!(limit.is_new(2 * REMEMBERED));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_limited_and_report_how_many_were_suppressed() {
        let lines = LineLimit::default();
        let said = (0..1000).filter_map(|_| lines.next()).count();
        assert_eq!(said, LINES as usize);
        tokio::time::advance(EACH).await;
        assert_eq!(
            (lines.next(), lines.next()),
            (Some(1000 - u64::from(LINES)), None)
        );
        tokio::time::advance(Duration::from_secs(3600)).await;
        let said: Vec<u64> = (0..1000).filter_map(|_| lines.next()).collect();
        assert_eq!((said.len(), said[0], said[1]), (LINES as usize, 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn suppressed_lines_are_reported_at_intervals() {
        let lines = LineLimit::new(1, EACH);
        let next = || lines.next_reporting(10 * EACH);
        assert_eq!((next(), next()), (Some(0), None));
        let mut reports = Vec::new();
        for _ in 0..20 {
            tokio::time::advance(EACH).await;
            reports.extend(next());
            assert_eq!(next(), None);
        }
        let told: Vec<(usize, u64)> = reports
            .into_iter()
            .enumerate()
            .filter(|(_, left)| *left > 0)
            .collect();
        assert_eq!(told, [(0, 1), (10, 10)]);
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(beginning("short"), "short");
        let long = "ä".repeat(1000);
        assert_eq!(beginning(&long), "ä".repeat(512));
    }
}
