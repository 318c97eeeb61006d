//! Lines about workers: what agents say makes the daemon write them, and so each pod has so many at once, and then so many in a time. What is left out is
//! counted, and said with the next line.

use std::collections::BTreeMap;
use std::time::Duration;

use super::types::PodUid;
use crate::pace::Pace;

/// Lines about one pod: a restart takes a handful for each of its workers. A node may have a hundred pods of one tenant's.
const LINES: (u32, Duration) = (128, Duration::from_secs(2));
/// Pods that are told apart: more than a node has.
const MOST: usize = 4096;

/// What was said of each pod. Pods that are gone are forgotten, and so are quiet ones where there are too many.
#[derive(Debug, Default)]
pub(super) struct Lines(BTreeMap<PodUid, OfPod>);

#[derive(Debug)]
struct OfPod {
    pace: Pace,
    left_out: u64,
}

impl Lines {
    /// Whether another line may be written about this pod: then how many were left out before it.
    pub(super) fn next(&mut self, pod: &PodUid) -> Option<u64> {
        if self.0.len() >= MOST && !self.0.contains_key(pod) {
            self.0.retain(|_, of_pod| !of_pod.pace.is_rested());
            if self.0.len() >= MOST {
                return None;
            }
        }
        let of_pod = self.0.entry(pod.clone()).or_insert_with(|| OfPod {
            pace: Pace::new(LINES.0, LINES.1),
            left_out: 0,
        });
        if of_pod.pace.try_take() {
            return Some(std::mem::take(&mut of_pod.left_out));
        }
        of_pod.left_out += 1;
        None
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.0.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_makes_noise_fills_no_log_and_hides_no_other() {
        let mut lines = Lines::default();
        let (loud, quiet) = (PodUid::from("loud"), PodUid::from("quiet"));
        let written = (0..31_000).filter(|_| lines.next(&loud).is_some()).count();
        assert_eq!(written, LINES.0 as usize);
        assert_eq!(lines.next(&quiet), Some(0));
        tokio::time::advance(LINES.1).await;
        assert_eq!(lines.next(&loud), Some(31_000 - u64::from(LINES.0)));
        assert_eq!(lines.next(&loud), None);
        lines.forget(&loud);
        assert_eq!(lines.0.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_come_and_go_are_not_remembered_for_ever() {
        let mut lines = Lines::default();
        for number in 0..3 * MOST {
            lines.next(&PodUid::from(number.to_string()));
            assert!(lines.0.len() <= MOST);
        }
        tokio::time::advance(LINES.1).await;
        assert_eq!(lines.next(&"next".into()), Some(0));
        assert_eq!(lines.0.len(), 1);
    }
}
