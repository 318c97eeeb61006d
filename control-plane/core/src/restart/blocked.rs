//! What a restart waits for that only an operator can resolve.
//!
//! Promises: it reports only what has lasted for `inplace-timeout`, or a node that Kubernetes has
//! given up; the report stays the same until its cause is gone, however many pods are blocked; a
//! healthy group costs nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::view::{Slot, View};
use super::{Identity, Observed, Phase, PodFact, RestartLevel, UnixNanos};

/// The pod that a group waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The reason.
    pub reason: BlockedReason,
    /// Name of the pod.
    pub pod: String,
    /// The node that it is bound to, empty if unknown.
    pub node: String,
}

/// Why a group waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockedReason {
    /// The pod is on a node that no longer reports to Kubernetes. The pod is not replaced before it
    /// is fully deleted.
    NodeLost,
    /// A pod from before a recreation remains, and new workers must not start beside it.
    OldPodRemains,
    /// The pod runs, but no node daemon has reported its worker, or none since its release. Or its
    /// agent is stuck while it starts the worker.
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

/// What one step knows about the blocked state of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Blockage {
    /// Unknown now: the last report stays.
    #[default]
    Unknown,
    /// It is not blocked.
    Clear,
    /// It waits for this pod, and perhaps for others.
    By(Blocked),
}

/// Measures how long pods block the group, and keeps the last report.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchdog {
    /// UIDs of pods that no daemon reports, each with the time since when.
    unreported: BTreeMap<String, UnixNanos>,
    /// UIDs of pods whose worker is being started, each with the time since when.
    starting: BTreeMap<String, UnixNanos>,
    /// Since when there are old pods.
    old_since: Option<UnixNanos>,
    /// The last report.
    pub(super) last: Option<Blocked>,
}

impl Watchdog {
    /// What the group waits for, and when to check again. `unseen` are the workers that were
    /// released and not seen since.
    pub(super) fn check(
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
        let mut report = |reason, pod: &PodFact| {
            found.push(Blocked {
                reason,
                pod: pod.name.clone(),
                node: pod.node.clone().unwrap_or_default(),
            });
        };

        let waited_for = || view.slots.iter().filter(|(_, slot)| slot.takes_part());
        // Its program may be on a file system that hangs.
        let starting: BTreeMap<&str, &PodFact> = waited_for()
            .filter(|(_, slot)| phase(slot) == Some(Phase::Starting))
            .filter_map(|(_, slot)| slot.pod.map(|pod| (pod.uid.as_str(), pod)))
            .collect();
        let pods: BTreeMap<&str, (&PodFact, bool)> = waited_for()
            // A pod that a daemon reports now is not blocked.
            .filter(|(_, slot)| phase(slot).is_none_or(|phase| phase == Phase::Unlinked))
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
                report(BlockedReason::WorkerNotReported, pod);
            }
        }
        for (uid, (pod, unseen)) in pods {
            let reported = if unseen { &linked } else { &reported };
            if pod.node_lost && !linked.contains(uid) {
                report(BlockedReason::NodeLost, pod);
            }
            // While images are pulled, there is nothing to report yet.
            if !pod.running || reported.contains(uid) {
                self.unreported.remove(uid);
            } else if overdue(*self.unreported.entry(uid.to_owned()).or_insert(now)) {
                report(BlockedReason::WorkerNotReported, pod);
            }
        }
        match &observed.old_pod {
            Some(pod) if overdue(*self.old_since.get_or_insert(now)) => {
                report(BlockedReason::OldPodRemains, pod);
            }
            Some(_) => {}
            None => self.old_since = None,
        }
        self.keep_or_choose(found);
        (self.last.clone(), wake)
    }

    /// Keeps the last report while it holds. Otherwise it reports the first obstacle that was
    /// found.
    fn keep_or_choose(&mut self, mut found: Vec<Blocked>) {
        let again = self.last.take().filter(|last| found.contains(last));
        self.last = again.or_else(|| {
            found.sort_by(|a, b| (a.reason, &a.pod).cmp(&(b.reason, &b.pod)));
            found.into_iter().next()
        });
    }
}

/// What a daemon reports of the worker now.
fn phase(slot: &Slot<'_>) -> Option<Phase> {
    slot.current.map(|(_, report)| report.phase)
}

/// UIDs of the pods that a daemon is linked to now, and of those that any daemon has reported. An
/// ended container of a worker with an agent does not count: the next container may lack the agent.
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
