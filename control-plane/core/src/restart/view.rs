//! The expected workers as the coordinator sees them: pod, current incarnation, and if they still
//! count.

mod slots;

use std::collections::BTreeMap;

use lockstep_mutants::mutant;

use super::{
    Exit, Generation, Identity, Incarnation, Observed, Phase, PodFact, Reason, Report, RestartLevel,
    UnixNanos, Worker,
};
pub(super) use slots::Slots;

/// All workers of a group, joined from pods and reports.
pub(super) struct View<'a> {
    pub(super) slots: Slots<'a>,
}

/// One worker.
pub(super) struct Slot<'a> {
    pub(super) worker: &'a Worker,
    /// The pod, if exactly one is alive. Two live pods of one identity are neither released nor
    /// trusted.
    pub(super) pod: Option<&'a PodFact>,
    /// The newest incarnation in that pod that still exists.
    pub(super) current: Option<(&'a Incarnation, &'a Report)>,
    /// The newest incarnation in that pod that is gone.
    pub(super) ended: Option<(&'a Incarnation, &'a Report)>,
    /// Its last failure in a container of that pod without an agent. The end of a pod, or an end
    /// beside another pod, does not count.
    pub(super) failed_without_agent: Option<(&'a Report, Exit)>,
    /// Set if it has completed, or has exited 0 before any stop and was not started again.
    pub(super) done: bool,
    /// The pod that it exited 0 in. Kubernetes decides if that counts, and does not count it if it
    /// replaces the pod.
    pub(super) done_in: Option<String>,
    /// True if the stage (replicatedJob) has finished.
    pub(super) finished: bool,
    /// An optional worker that has not joined: the group does not wait for it.
    pub(super) absent: bool,
}

impl<'a> Slot<'a> {
    /// A worker without reports. `done_in` is the pod that it is known to have completed in.
    fn expected(worker: &'a Worker, done_in: Option<String>) -> Self {
        let pod = match worker.pods.as_slice() {
            [pod] => Some(pod),
            _ => None,
        };
        Self {
            worker,
            pod,
            current: None,
            ended: None,
            failed_without_agent: None,
            done: worker.completed || worker.failed || done_in.is_some(),
            done_in,
            finished: false,
            absent: false,
        }
    }
}

impl<'a> View<'a> {
    /// Joins the observations. `done` are the workers that were known to be done before;
    /// `has_joined` is true for optional workers that have joined.
    pub(super) fn new(
        observed: &'a Observed,
        done: &BTreeMap<Identity, String>,
        has_joined: impl Fn(&Identity) -> bool,
    ) -> Self {
        let slots = observed.workers.iter().map(|(identity, worker)| {
            let done_in = done
                .get(identity)
                .filter(|pod| !is_replaced(worker, pod) && !is_followed(observed, identity, pod, None))
                .cloned();
            let slot = Slot {
                finished: observed.finished_stages.contains(&worker.stage),
                absent: worker.optional && !has_joined(identity),
                ..Slot::expected(worker, done_in)
            };
            (identity, slot)
        });
        let mut slots = Slots::new(slots.collect());
        for (incarnation, report) in &observed.reports {
            let Some(slot) = slots.get_mut(&report.identity) else {
                continue;
            };
            // The agent exits 0 only for a completed worker. Its last report may be lost.
            let done = match report.phase {
                Phase::Done => true,
                Phase::Lost(exit) => exit.code == 0,
                _ => false,
            };
            if done
                && !is_replaced(slot.worker, &incarnation.pod_uid)
                && !is_followed(
                    observed,
                    &report.identity,
                    &incarnation.pod_uid,
                    Some((incarnation, report)),
                )
            {
                slot.done = true;
                slot.done_in = Some(incarnation.pod_uid.clone());
            }
            if slot.pod.is_none_or(|pod| pod.uid != incarnation.pod_uid) {
                continue;
            }
            if let Phase::Lost(exit) = report.phase
                && exit.code != 0
                && report.released_generation.is_some()
                && slot.pod.is_some_and(|pod| !pod.deleting)
                && slot
                    .failed_without_agent
                    .is_none_or(|(known, _)| report.released_generation > known.released_generation)
            {
                slot.failed_without_agent = Some((report, exit));
            }
            // An incarnation that is out of sight may be long gone, so it never hides a visible
            // one.
            let freshness = |report: &Report| (report.phase != Phase::Unlinked, report.since);
            let newer = |known: Option<(_, &Report)>| {
                known.is_none_or(|(_, known)| freshness(report) > freshness(known))
            };
            match report.phase {
                Phase::Done => {}
                Phase::Lost(_) if newer(slot.ended) => slot.ended = Some((incarnation, report)),
                Phase::Lost(_) => {}
                _ if newer(slot.current) => slot.current = Some((incarnation, report)),
                _ => {}
            }
        }
        Self { slots }
    }

    /// True if an agent has started any worker that counts, at this generation or at a later one of
    /// its own.
    pub(super) fn ran_since(&self, generation: Generation) -> bool {
        self.slots
            .values()
            .filter(|slot| slot.takes_part() && slot.worker.level == RestartLevel::Process)
            .filter_map(|slot| slot.current)
            .any(|(_, report)| {
                report.generation >= generation
                    && matches!(report.phase, Phase::Starting | Phase::Running | Phase::Exited(_))
            })
    }

    /// True if the Job of a worker is being failed.
    pub(super) fn is_failing(&self) -> bool {
        self.slots.values().any(|slot| slot.worker.ending)
    }

    /// The level that a restart in place begins with: the highest that one of its workers needs.
    pub(super) fn level(&self) -> RestartLevel {
        self.slots
            .values()
            .filter(|slot| slot.takes_part())
            .map(|slot| slot.worker.level)
            .max()
            .unwrap_or_default()
    }

    /// Why the group cannot restart in place, so that its Jobs must be recreated.
    pub(super) fn cannot_be_in_place(&self) -> Option<Reason> {
        let mut slots = self.slots.values();
        // It is done but its stage is not: it cannot run again in place.
        if slots.any(|slot| slot.done && !slot.finished) {
            return Some(Reason::WorkDone);
        }
        let mut slots = self.slots.values();
        let stays_down = slots.any(|slot| slot.takes_part() && slot.worker.stays_down);
        mutant!(RestartWhatStaysDown => None);
        stays_down.then_some(Reason::StaysDown)
    }
}

/// True if Kubernetes has replaced this pod. Then it did not count the worker's exit there.
fn is_replaced(worker: &Worker, pod_uid: &str) -> bool {
    worker.pods.iter().any(|pod| pod.uid != pod_uid)
}

/// True if the kubelet has started another container after one that exited 0, as after a failed
/// probe. Then the worker was ended, and is not done. Without the report of the container that
/// exited 0, only a live container shows that.
fn is_followed(
    observed: &Observed,
    identity: &Identity,
    pod_uid: &str,
    done: Option<(&Incarnation, &Report)>,
) -> bool {
    let first = Incarnation {
        pod_uid: pod_uid.to_owned(),
        container_id: String::new(),
    };
    let mut others = observed
        .reports
        .range(first..)
        .take_while(|(other, _)| other.pod_uid == pod_uid)
        .filter(|(other, report)| {
            report.identity == *identity && done.is_none_or(|(done, _)| *other != done)
        });
    others.any(|(_, report)| {
        let lives = !matches!(report.phase, Phase::Done | Phase::Lost(_) | Phase::Unlinked);
        // The times of an ended container prove nothing: clocks may be set back, generations never
        // are.
        lives || done.is_some_and(|(_, done)| report.generation > done.generation)
    })
}

impl Slot<'_> {
    /// True if the worker takes part in barriers.
    pub(super) fn takes_part(&self) -> bool {
        let is_over = (self.done || self.finished) && !mutant!(ForgetDoneWorkers);
        !self.absent && !is_over
    }

    /// True if it is an optional worker that has not joined, and its pod is going. It joins in its
    /// next pod, and the end of this one is no failure.
    pub(super) fn leaves(&self) -> bool {
        self.absent && self.pod.is_none_or(|pod| pod.deleting)
    }

    /// True if it is an optional worker that has not joined, and may in this pod.
    pub(super) fn may_join(&self) -> bool {
        self.absent && !self.leaves() && !self.done && !self.finished
    }

    /// True if it is parked at exactly this generation. Without an agent: if nothing of an earlier
    /// generation runs.
    pub(super) fn parked_at(&self, generation: Generation) -> bool {
        let parked = match self.worker.level {
            RestartLevel::Process => Phase::Parked,
            _ => Phase::Running,
        };
        match self.current {
            Some((_, report)) => report.phase == parked && report.generation == generation,
            None => self.worker.level != RestartLevel::Process && self.ended.is_some(),
        }
    }

    /// True if it may run although it was not released.
    pub(super) fn runs_unreleased(&self) -> bool {
        self.worker.level == RestartLevel::Container && self.pod.is_some_and(|pod| pod.running)
    }

    /// True if its pod runs, but no daemon reports its worker.
    pub(super) fn is_out_of_sight(&self) -> bool {
        match self.current {
            Some((_, report)) => report.phase == Phase::Unlinked,
            None => self.ended.is_none() && self.pod.is_some_and(|pod| pod.running),
        }
    }

    /// When the previous process had stopped, by the node's clock.
    pub(super) fn stopped_at(&self) -> Option<UnixNanos> {
        let (_, report) = match self.worker.level {
            RestartLevel::Process => self.current,
            _ => self.ended,
        }?;
        Some(report.since)
    }

    /// True if its daemon reports it as running now.
    pub(super) fn seen_running(&self) -> bool {
        self.current
            .is_some_and(|(_, report)| report.phase == Phase::Running)
    }

    /// True if it runs at exactly this generation, or is out of sight while its pod runs.
    pub(super) fn running_at(&self, generation: Generation) -> bool {
        self.current.is_some_and(|(_, report)| match report.phase {
            Phase::Running => report.generation == generation,
            Phase::Unlinked => self.pod.is_some_and(|pod| pod.running),
            _ => false,
        })
    }
}
