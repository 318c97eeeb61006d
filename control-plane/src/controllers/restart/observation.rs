//! What the coordinator decides on: the API server's objects, and the reports of the nodes. Reports
//! are applied one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_api::JobSet;
use lockstep_core::restart::{
    Difference, Durable, Generation, Identity, Impossible, Incarnation, Observed, Phase, Placed, Report,
    Scope, StepDelay, Worker,
};
use lockstep_mutants::mutant;

use super::clock::{gather, rest, sleep_until};
use super::view::View;
use crate::hub::{Changes, GroupLink, Unbelieved};
use crate::k8s::client::SILENCE;

/// How long reports are kept about pods that the API server does not show: long enough to detect a
/// silent watch and to restart it. Nodes do not repeat these reports.
const KEPT: Duration = SILENCE.saturating_mul(2);
/// The longest time for which a step is put off while workers progress as expected.
const PUT_OFF: Duration = Duration::from_millis(100);
/// How long a change of what is only shown may wait for others.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// What is observed of a group, until the API server's objects are read again.
pub struct Observation {
    view: View,
    observed: Arc<Observed>,
    awaited: Option<StepDelay>,
    /// Set if a node has sent a report that is not believed.
    disbelieves: bool,
    /// Set if some workers restart without their group, as far as the daemons support it.
    restarts_workers: bool,
}

/// How soon the reports since the last step call for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// No step: nothing has changed.
    Nothing,
    /// No step: what has changed is only shown.
    Shown,
    /// No step yet: workers have progressed as expected.
    Progress,
    /// A delayed step: nodes have sent Hello, and others may follow.
    Hello,
    /// A step at once.
    Step,
}

/// What reports have made due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A step.
    Step,
    /// To show the observation, which no step decides by.
    Show,
}

impl Observation {
    /// The current observation. `durable` is the state in the JobSet's status.
    #[must_use]
    pub fn new(view: View, jobset: &JobSet, link: &GroupLink, durable: Durable) -> Self {
        let gathered = &view.gathered;
        // This comes first, so that a later hello counts as a change.
        link.watch_nodes(&view.nodes);
        link.drop_gone_pods(&gathered.pods, KEPT);
        // The order matters: the reports of a node that has sent Hello are among those read next.
        let heard_nodes = link.reported_nodes(&view.nodes);
        let received = link.all_reports();
        let restarts_workers = gathered
            .workers
            .values()
            .any(|worker| worker.scope == Scope::Worker);
        let workers = workers(&view, link);
        let (reports, disbelieves) = reports(&view, &workers, &durable, link, received);
        let observed = Observed {
            reports,
            workers,
            old_pods: gathered.old_pods,
            old_pod: gathered.old_pod.clone(),
            finished_stages: gathered.finished_stages.clone(),
            unwanted_jobs: gathered.unwanted_jobs.clone(),
            waiting_jobs: gathered.waiting_jobs.clone(),
            heard_nodes,
            durable,
            policy: gathered.policy.clone(),
            suspended: jobset.is_suspended(),
            // The token is copied to the status, so one that is too long is ignored.
            manual_request: jobset.restart_request().ok().flatten().map(str::to_owned),
            worker_restart_request: jobset.worker_restart_request().ok().flatten(),
        };
        let observed = Arc::new(observed);
        Self {
            view,
            observed,
            awaited: None,
            disbelieves,
            restarts_workers,
        }
    }

    /// Updates the observation after a change of the JobSet's status that [`View`] does not depend
    /// on.
    pub fn renew(&mut self, link: &GroupLink, durable: Durable) {
        let forgotten = link.drop_gone_pods(&self.view.gathered.pods, KEPT);
        let observed = Arc::make_mut(&mut self.observed);
        // A report that was not believed may be possible now.
        if forgotten || self.disbelieves {
            let (workers, received) = (&observed.workers, link.all_reports());
            (observed.reports, self.disbelieves) = reports(&self.view, workers, &durable, link, received);
        }
        observed.durable = durable;
        self.listen(link);
    }

    /// Makes reports of progress call for no step until all awaited workers have arrived.
    pub fn wait_for(&mut self, awaited: Option<StepDelay>) {
        self.awaited = awaited;
    }

    /// Applies the reports since the last time, and returns how soon they call for a step.
    pub fn listen(&mut self, link: &GroupLink) -> Urgency {
        let changes = link.unseen_changes();
        if changes == Changes::None {
            return Urgency::Nothing;
        }
        let view = &self.view;
        let observed = Arc::make_mut(&mut self.observed);
        let mut urgency = Urgency::Nothing;
        let mut greeted = BTreeSet::new();
        if changes == Changes::Hello {
            // This comes first: the reports of these nodes are among those read next, and a later
            // hello counts as a change.
            greeted = link.newly_reported_nodes();
            observed.heard_nodes.extend(greeted.iter().cloned());
            if self.restarts_workers {
                observed.workers = workers(view, link);
            }
            urgency = Urgency::Hello;
        }
        let Observed {
            reports,
            workers,
            durable,
            ..
        } = observed;
        let awaited = &mut self.awaited;
        let mut lies = Vec::new();
        link.read_new_reports(|incarnation, report| {
            let change = match view.believes(incarnation, report, durable) {
                Ok(true) => take_in(reports, workers, incarnation, report),
                Ok(false) => retract(reports, incarnation, report),
                Err(why) => {
                    lies.push((incarnation.clone(), report.node.clone(), why));
                    retract(reports, incarnation, report)
                }
            };
            let passes = match (&change, awaited.as_mut()) {
                (ReportChange::PhaseFrom(before), Some(awaited)) => awaited.defers(*before, report),
                _ => false,
            };
            urgency = urgency.max(match change {
                ReportChange::Nothing => Urgency::Nothing,
                ReportChange::Shown => Urgency::Shown,
                _ if passes => Urgency::Progress,
                // The report came with the node's hello.
                _ if greeted.contains(&report.node) => Urgency::Hello,
                ReportChange::PhaseFrom(_) | ReportChange::Other => Urgency::Step,
            });
        });
        self.disbelieves |= !lies.is_empty();
        for (incarnation, node, why) in lies {
            link.refuse_report(&incarnation, &node, &why);
        }
        urgency
    }

    /// Waits until reports make a step due: at once if one calls for it, [`PUT_OFF`] after reports
    /// of progress, and sooner after a hello. If reports change only what is shown, this is due
    /// after [`SHOWN_AFTER`]. `took` is the duration of the last step. Cancel-safe: the reports are
    /// kept for the next step.
    pub async fn until_step_due(&mut self, link: &GroupLink, took: Duration) -> Due {
        let mut from = Instant::now() + rest(took);
        let mut step_at: Option<Instant> = None;
        let mut show_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = link.changed_after(from) => {}
                () = sleep_until(step_at) => return Due::Step,
                // A step shows its observation too.
                () = sleep_until(show_at.filter(|_| step_at.is_none())) => return Due::Show,
            }
            let began = Instant::now();
            let put_off = match self.listen(link) {
                Urgency::Nothing => None,
                Urgency::Shown => {
                    show_at.get_or_insert(began + SHOWN_AFTER);
                    None
                }
                Urgency::Progress => Some(PUT_OFF),
                Urgency::Hello => Some(gather(took)),
                Urgency::Step => return Due::Step,
            };
            // A timer would take longer.
            if put_off.is_some_and(|put_off| put_off.is_zero()) {
                return Due::Step;
            }
            step_at = step_at
                .into_iter()
                .chain(put_off.map(|put_off| began + put_off))
                .min();
            from = Instant::now() + rest(began.elapsed());
        }
    }

    /// What the API server shows.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What the coordinator decides on.
    #[must_use]
    pub fn observed(&self) -> &Arc<Observed> {
        &self.observed
    }
}

/// What a report changes.
enum ReportChange {
    Nothing,
    /// Only what is shown.
    Shown,
    /// The phase of an incarnation. It holds the former phase and generation.
    PhaseFrom((Phase, Generation)),
    /// Anything else.
    Other,
}

/// Applies a report that is believed.
fn take_in(
    reports: &mut BTreeMap<Incarnation, Report>,
    workers: &BTreeMap<Identity, Worker>,
    incarnation: &Incarnation,
    report: &Report,
) -> ReportChange {
    let Some(known) = reports.get_mut(incarnation) else {
        let report = shared(report.clone(), workers);
        reports.insert(incarnation.clone(), report);
        return ReportChange::Other;
    };
    let before = (known.phase, known.generation);
    match known.follow(report) {
        Difference::None => ReportChange::Nothing,
        Difference::Shown => ReportChange::Shown,
        Difference::Decisive => ReportChange::PhaseFrom(before),
    }
}

/// Removes the node's earlier report, because a false one followed it.
fn retract(
    reports: &mut BTreeMap<Incarnation, Report>,
    incarnation: &Incarnation,
    lie: &Report,
) -> ReportChange {
    let before = reports.get(incarnation);
    if before.is_none_or(|before| before.node != lie.node) {
        return ReportChange::Nothing;
    }
    reports.remove(incarnation);
    ReportChange::Other
}

impl View {
    /// Checks a report. A node is believed about the pods that are bound to it, if the report is
    /// possible. Returns false while that is not known yet.
    fn believes(
        &self,
        incarnation: &Incarnation,
        report: &Report,
        durable: &Durable,
    ) -> Result<bool, Unbelieved> {
        let pod = &incarnation.pod_uid;
        // The node may report a pod before the API server shows the pod or its node.
        let Some(Placed {
            node: Some(bound),
            place: Some((job, index)),
        }) = self.gathered.pods.get(pod)
        else {
            return Ok(false);
        };
        let Identity {
            job: reported,
            index: at,
            ..
        } = &report.identity;
        if *bound != report.node && !mutant!(BelieveAnyNode) {
            return Err(Unbelieved::ForeignPod {
                pod: pod.clone(),
                bound: bound.clone(),
            });
        }
        if (&**reported, at) != (job.as_str(), index) {
            return Err(Unbelieved::OtherWorker {
                pod: pod.clone(),
                worker: report.identity.clone(),
            });
        }
        match durable.contradicts(report) {
            Some(impossible) => Err(unbelieved(impossible, pod, report, durable)),
            None => Ok(true),
        }
    }
}

fn unbelieved(impossible: Impossible, pod: &str, report: &Report, durable: &Durable) -> Unbelieved {
    let pod = pod.to_owned();
    match impossible {
        Impossible::Generation => Unbelieved::ImpossibleGeneration {
            pod,
            generation: report.generation,
            durable: durable.generation.max(durable.latest),
        },
        Impossible::CountedRestarts => Unbelieved::ImpossibleCountedRestarts {
            pod,
            counted_restarts: report.counted_restarts,
            durable: durable.counted_restarts,
        },
    }
}

/// The reports that are believed, and true if there are others.
fn reports(
    view: &View,
    workers: &BTreeMap<Identity, Worker>,
    durable: &Durable,
    link: &GroupLink,
    received: Vec<(Incarnation, Report)>,
) -> (BTreeMap<Incarnation, Report>, bool) {
    let mut believed = BTreeMap::new();
    let mut disbelieves = false;
    for (incarnation, report) in received {
        match view.believes(&incarnation, &report, durable) {
            Ok(true) => {
                believed.insert(incarnation, shared(report, workers));
            }
            Ok(false) => {}
            Err(why) => {
                disbelieves = true;
                link.refuse_report(&incarnation, &report.node, &why);
            }
        }
    }
    (believed, disbelieves)
}

/// The report with the identity of its worker, whose names share memory within the Job.
fn shared(mut report: Report, workers: &BTreeMap<Identity, Worker>) -> Report {
    if let Some((identity, _)) = workers.get_key_value(&report.identity) {
        report.identity = identity.clone();
    }
    report
}

fn workers(view: &View, link: &GroupLink) -> BTreeMap<Identity, Worker> {
    let mut workers = view.gathered.workers.clone();
    let restarts_workers = workers.values().any(|worker| worker.scope == Scope::Worker);
    if restarts_workers && !view.nodes.iter().all(|node| link.supports_worker_restarts(node)) {
        // Some daemons do not support restarts of one worker.
        for worker in workers.values_mut() {
            worker.scope = Scope::Group;
        }
    }
    workers
}

#[cfg(test)]
mod tests;
