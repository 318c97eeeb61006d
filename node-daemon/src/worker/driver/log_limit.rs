//! Limits log lines about workers: agents and failing workers cause them. Each pod has a burst and
//! a rate, and so has each namespace, whose pods may come and go. Omitted lines are counted, and
//! the pod's next line carries the count.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, RateLimit};

use crate::worker::types::PodUid;

/// Lines about one pod: a restart takes a handful for each of its workers.
const OF_POD: Rate = Rate {
    burst: 128,
    every: Duration::from_secs(2),
};
/// Lines about the pods of one namespace. A node may have a hundred of them, and a line has some
/// 300 bytes.
const OF_NAMESPACE: Rate = Rate {
    burst: 1024,
    every: Duration::from_millis(200),
};
/// Most pods and namespaces that are tracked: more than a node has.
const MAX_TRACKED: usize = 4096;

/// The limits of each pod and namespace. A pod's limit is removed with the pod, and a quiet pod's
/// when there are too many.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    pods: BTreeMap<PodUid, PodLimit>,
    /// They outlive their pods: new pods do not raise the limit of a namespace.
    namespaces: BTreeMap<String, RateLimit>,
}

#[derive(Debug)]
struct PodLimit {
    limit: RateLimit,
    left_out: u64,
}

impl LogLimit {
    /// How many lines about this pod were omitted before the next one; none if that is to be
    /// omitted, too.
    pub(super) fn next(&mut self, namespace: &str, pod: &PodUid) -> Option<u64> {
        if self.pods.len() >= MAX_TRACKED && !self.pods.contains_key(pod) {
            self.pods.retain(|_, of_pod| !of_pod.limit.is_full());
            if self.pods.len() >= MAX_TRACKED {
                return None;
            }
        }
        let of_pod = self.pods.entry(pod.clone()).or_insert_with(|| PodLimit {
            limit: RateLimit::new(OF_POD),
            left_out: 0,
        });
        if of_pod.limit.try_take() && may_log(&mut self.namespaces, namespace) {
            return Some(std::mem::take(&mut of_pod.left_out));
        }
        of_pod.left_out += 1;
        None
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.pods.remove(pod);
    }
}

fn may_log(namespaces: &mut BTreeMap<String, RateLimit>, namespace: &str) -> bool {
    if let Some(limit) = namespaces.get_mut(namespace) {
        return limit.try_take();
    }
    // There are at most as many namespaces as there were pods recently.
    namespaces.retain(|_, limit| !limit.is_full());
    if namespaces.len() >= MAX_TRACKED {
        return false;
    }
    let mut limit = RateLimit::new(OF_NAMESPACE);
    let may = limit.try_take();
    namespaces.insert(namespace.to_owned(), limit);
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_noisy_pod_does_not_fill_the_log_or_hide_others() {
        let mut lines = LogLimit::default();
        let (loud, quiet) = (PodUid::from("loud"), PodUid::from("quiet"));
        let written = (0..31_000).filter(|_| lines.next("ns", &loud).is_some()).count();
        assert_eq!(written, OF_POD.burst as usize);
        assert_eq!(lines.next("ns", &quiet), Some(0));
        tokio::time::advance(OF_POD.every).await;
        assert_eq!(lines.next("ns", &loud), Some(31_000 - u64::from(OF_POD.burst)));
        assert_eq!(lines.next("ns", &loud), None);
        lines.forget(&loud);
        assert_eq!(lines.pods.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_come_and_go_are_forgotten() {
        let mut lines = LogLimit::default();
        for number in 0..3 * MAX_TRACKED {
            lines.next("ns", &PodUid::from(number.to_string()));
            assert!(lines.pods.len() <= MAX_TRACKED);
        }
        tokio::time::advance(OF_POD.every).await;
        assert_eq!(lines.next("ns", &"next".into()), Some(0));
        assert_eq!(lines.pods.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_come_and_go_do_not_fill_the_log_or_hide_other_namespaces() {
        let mut lines = LogLimit::default();
        let pods: Vec<PodUid> = (0..110).map(|number| PodUid::from(number.to_string())).collect();
        let mut written = 0;
        for _ in 0..128 {
            written += pods
                .iter()
                .filter(|pod| lines.next("loud", pod).is_some())
                .count();
        }
        assert_eq!(written, OF_NAMESPACE.burst as usize);
        pods.iter().for_each(|pod| lines.forget(pod));
        assert_eq!(lines.next("loud", &"new".into()), None);
        assert_eq!(lines.next("quiet", &"other".into()), Some(0));
        tokio::time::advance(OF_NAMESPACE.every).await;
        assert_eq!(lines.next("loud", &"new".into()), Some(1));
        // A pod that is quiet for long is forgotten.
        tokio::time::advance(OF_NAMESPACE.every * OF_NAMESPACE.burst).await;
        lines.next("another", &"another".into());
        assert_eq!(lines.namespaces.len(), 1);
    }
}
