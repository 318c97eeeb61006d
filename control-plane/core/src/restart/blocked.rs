//! What a restart waits for that only an operator can resolve.
//!
//! Promises: it reports only what has lasted for `inplace-timeout`, or a node that Kubernetes has
//! given up; the report stays the same until it is over, however many pods are concerned; a healthy
//! group costs nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::view::{Slot, View};
use super::{Identity, Observed, Phase, PodFact, RestartLevel, UnixNanos};

/// The pod that a group waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Why.
    pub reason: BlockedReason,
    /// Name of the pod.
    pub pod: String,
    /// The node that it is bound to, empty if unknown.
    pub node: String,
}

/// Why a group waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockedReason {
    /// The pod is on a node that no longer reports to Kubernetes. Nothing replaces the pod before
    /// it is deleted for good.
    NodeLost,
    /// A pod of an earlier recreation remains, and new workers may not start beside it.
    OldPodRemains,
    /// The pod runs, and no node daemon has reported its worker, or none since its release; or its
    /// agent is stuck starting the worker.
    WorkerNotReported,
}

impl BlockedReason {
    /// The name used in conditions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeLost => "NodeLost",
            Self::OldPodRemains => "OldPodRemains",
            Self::WorkerNotReported => "WorkerNotReported",
        }
    }
}

/// What is known of a blocked group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Blockage {
    /// Not known now: the last report stays.
    #[default]
    Unknown,
    /// It is not blocked.
    Clear,
    /// It waits for this pod, and perhaps for others.
    By(Blocked),
}

/// Measures how long things last, and keeps the last report.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchdog {
    /// UIDs of pods that no daemon reports, and since when.
    unreported: BTreeMap<String, UnixNanos>,
    /// UIDs of pods whose worker is being started, and since when.
    starting: BTreeMap<String, UnixNanos>,
    /// Since when there are old pods.
    old_since: Option<UnixNanos>,
    /// The last report.
    pub(super) said: Option<Blocked>,
}

impl Watchdog {
    /// What the group waits for, and when to look again. `unseen` are the workers that were
    /// released and not seen since.
    pub(super) fn look(
        &mut self,
        observed: &Observed,
        view: &View<'_>,
        unseen: &HashSet<Identity>,
        now: UnixNanos,
    ) -> (Option<Blocked>, Option<UnixNanos>) {
        let timeout = observed.policy.timeout_ms;
        let mut wake: Option<UnixNanos> = None;
        let mut overdue = |since: UnixNanos| {
            let due = since.plus_millis(timeout);
            if due > now {
                wake = Some(wake.map_or(due, |at| at.min(due)));
            }
            due <= now
        };
        let mut found: Vec<Blocked> = Vec::new();
        let mut say = |reason, pod: &PodFact| {
            found.push(Blocked {
                reason,
                pod: pod.name.clone(),
                node: pod.node.clone().unwrap_or_default(),
            });
        };

        // Nothing is wrong with a pod that a daemon reports now.
        let spoken_for = |slot: &Slot<'_>| {
            slot.current
                .is_some_and(|(_, report)| report.phase != Phase::Unlinked)
        };
        let waited_for = || view.slots.iter().filter(|(_, slot)| slot.counts());
        // Its program may be on a file system that hangs.
        let starting: BTreeMap<&str, &PodFact> = waited_for()
            .filter(|(_, slot)| {
                slot.current
                    .is_some_and(|(_, report)| report.phase == Phase::Starting)
            })
            .filter_map(|(_, slot)| slot.pod.map(|pod| (pod.uid.as_str(), pod)))
            .collect();
        let pods: BTreeMap<&str, (&PodFact, bool)> = waited_for()
            .filter(|(_, slot)| !spoken_for(slot))
            .flat_map(|(identity, slot)| {
                let unseen = unseen.contains(identity);
                slot.worker.pods.iter().map(move |pod| (pod, unseen))
            })
            .filter(|(pod, _)| pod.node.is_some())
            .map(|(pod, unseen)| (pod.uid.as_str(), (pod, unseen)))
            .collect();
        let (linked, reported) = match pods.len() {
            0 => Default::default(),
            _ => reported_pods(observed),
        };
        self.unreported.retain(|uid, _| pods.contains_key(uid.as_str()));
        self.starting.retain(|uid, _| starting.contains_key(uid.as_str()));
        for (uid, pod) in starting {
            if overdue(*self.starting.entry(uid.to_owned()).or_insert(now)) {
                say(BlockedReason::WorkerNotReported, pod);
            }
        }
        for (uid, (pod, unseen)) in pods {
            let reported = if unseen { &linked } else { &reported };
            if pod.node_lost && !linked.contains(uid) {
                say(BlockedReason::NodeLost, pod);
            }
            // While images are pulled there is nothing to report yet.
            if !pod.running || reported.contains(uid) {
                self.unreported.remove(uid);
            } else if overdue(*self.unreported.entry(uid.to_owned()).or_insert(now)) {
                say(BlockedReason::WorkerNotReported, pod);
            }
        }
        match &observed.old_pod {
            Some(pod) if overdue(*self.old_since.get_or_insert(now)) => {
                say(BlockedReason::OldPodRemains, pod);
            }
            Some(_) => {}
            None => self.old_since = None,
        }
        self.keep_or_choose(found);
        (self.said.clone(), wake)
    }

    /// Keeps the last report while it holds. Else it reports the first of what was found.
    fn keep_or_choose(&mut self, mut found: Vec<Blocked>) {
        let again = self.said.take().filter(|said| found.contains(said));
        self.said = again.or_else(|| {
            found.sort_by(|a, b| (a.reason, &a.pod).cmp(&(b.reason, &b.pod)));
            found.into_iter().next()
        });
    }
}

/// UIDs of the pods that a daemon is linked to now, and of those that any has reported. A container
/// that has ended where an agent should be says nothing of the next one, which may have none.
fn reported_pods(observed: &Observed) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut linked, mut reported) = (BTreeSet::new(), BTreeSet::new());
    for (incarnation, report) in &observed.reports {
        let uid = incarnation.pod_uid.as_str();
        let worker = observed.workers.get(&report.identity);
        let by_agent = worker.is_none_or(|worker| worker.level == RestartLevel::Process);
        if by_agent && matches!(report.phase, Phase::Lost(_)) {
            continue;
        }
        reported.insert(uid);
        if report.phase != Phase::Unlinked {
            linked.insert(uid);
        }
    }
    (linked, reported)
}
