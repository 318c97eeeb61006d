//! What the coordinator decides on: the API server's part, and beside it what the nodes say, of which only the news is taken in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_api::JobSet;
use lockstep_core::restart::{
    Awaited, Durable, Generation, Identity, Impossible, Incarnation, Observed, Phase, Placed, Policy, Report,
    Scope, Worker,
};
use lockstep_mutants::{self as mutants, Mutant};

use super::clock::{gather, rest, sleep_until};
use super::observe::View;
use crate::hub::{Changes, GroupLink, Unbelieved};
use crate::k8s::client::SILENCE;

/// How long reports are kept of pods that the API server does not show: until a watch that has fallen silent was found out, and began anew. Who has been
/// reported is not reported again.
const KEPT: Duration = SILENCE.saturating_mul(2);
/// The longest time that a step is put off while workers come nearer to where they are awaited.
const PUT_OFF: Duration = Duration::from_millis(100);

/// What is seen of a group, from one look at the API server to the next.
pub struct Observation {
    view: View,
    observed: Arc<Observed>,
    awaited: Option<Awaited>,
    /// Whether any node has said what is not believed.
    disbelieves: bool,
    /// Whether any worker is to be restarted alone, where the daemons can.
    restarts_workers: bool,
}

/// What the nodes have said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Nothing that was not known.
    Nothing,
    /// That workers have come nearer to where all are awaited: that calls for no step yet.
    Progress,
    /// That nodes have come, or come back: that calls for a step, and where the group is large others will come with them.
    Hello,
    /// What calls for a step.
    News,
}

impl Observation {
    /// What there is now. The JobSet's status says what is `durable`.
    #[must_use]
    pub fn new(view: View, jobset: &JobSet, link: &GroupLink, durable: Durable, replaces_pods: bool) -> Self {
        let gathered = &view.gathered;
        // Before anything is asked of them: a hello that comes later is news.
        link.look_at(&view.nodes);
        link.forget_pods(&gathered.pods, KEPT);
        // In this order: what a node that is heard has said is among the reports.
        let heard_nodes = link.heard(&view.nodes);
        let said = link.reports();
        let restarts_workers = gathered
            .workers
            .values()
            .any(|worker| worker.scope == Scope::Worker);
        let workers = workers(&view, link);
        let (reports, disbelieves) = reports(&view, &workers, &durable, link, said);
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
            policy: Policy {
                replaces_pods,
                ..gathered.policy.clone()
            },
            suspended: jobset.is_suspended(),
            // It is copied to the status, and one that is too long is none.
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

    /// What there is now, where the JobSet has another status, of which [`View`] depends on nothing that has changed, and Jobs and pods are the same.
    pub fn renew(&mut self, link: &GroupLink, durable: Durable) {
        let forgotten = link.forget_pods(&self.view.gathered.pods, KEPT);
        let observed = Arc::make_mut(&mut self.observed);
        // What could not be believed may be possible now.
        if forgotten || self.disbelieves {
            let (workers, said) = (&observed.workers, link.reports());
            (observed.reports, self.disbelieves) = reports(&self.view, workers, &durable, link, said);
        }
        observed.durable = durable;
        self.listen(link);
    }

    /// Until whoever is awaited has got there, what they say of their progress calls for no step.
    pub fn wait_for(&mut self, awaited: Option<Awaited>) {
        self.awaited = awaited;
    }

    /// Takes in what the nodes have said since the last time. Says what that calls for.
    pub fn listen(&mut self, link: &GroupLink) -> Heard {
        let news = link.news();
        if news == Changes::None {
            return Heard::Nothing;
        }
        let view = &self.view;
        let observed = Arc::make_mut(&mut self.observed);
        let mut heard = Heard::Nothing;
        let mut greeted = BTreeSet::new();
        if news == Changes::Hello {
            // Before all else: what these nodes have said is among the reports, and a hello that comes later is news.
            greeted = link.greeted();
            observed.heard_nodes.extend(greeted.iter().cloned());
            if self.restarts_workers {
                observed.workers = workers(view, link);
            }
            heard = Heard::Hello;
        }
        let Observed {
            reports,
            workers,
            durable,
            ..
        } = observed;
        let awaited = &mut self.awaited;
        let mut lies = Vec::new();
        link.hear(|incarnation, report| {
            let said = match view.believes(incarnation, report, durable) {
                Ok(true) => take_in(reports, workers, incarnation, report),
                Ok(false) => retract(reports, incarnation, report),
                Err(why) => {
                    lies.push((incarnation.clone(), report.node.clone(), why));
                    retract(reports, incarnation, report)
                }
            };
            let passes = match (&said, awaited.as_mut()) {
                (Said::After(before), Some(awaited)) => awaited.passes_over(*before, report),
                _ => false,
            };
            heard = heard.max(match said {
                Said::Nothing => Heard::Nothing,
                _ if passes => Heard::Progress,
                // What a node has said with its hello.
                _ if greeted.contains(&report.node) => Heard::Hello,
                Said::After(_) | Said::News => Heard::News,
            });
        });
        self.disbelieves |= !lies.is_empty();
        for (incarnation, node, why) in lies {
            link.disown(&incarnation, &node, &why);
        }
        heard
    }

    /// Listens until the nodes have said what calls for a step, or have said anything and that is some time ago: [`PUT_OFF`], or less for a hello. A step has
    /// just taken so long. Cancel-safe: what was heard is kept, and any step takes it up.
    pub async fn news(&mut self, link: &GroupLink, took: Duration) {
        let mut from = Instant::now() + rest(took);
        let mut step_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = link.changed_after(from) => {}
                () = sleep_until(step_at) => return,
            }
            let began = Instant::now();
            let put_off = match self.listen(link) {
                Heard::Nothing => None,
                Heard::Progress => Some(PUT_OFF),
                Heard::Hello => Some(gather(took)),
                Heard::News => return,
            };
            // No timer is as fine as that.
            if put_off.is_some_and(|put_off| put_off.is_zero()) {
                return;
            }
            step_at = step_at
                .into_iter()
                .chain(put_off.map(|put_off| began + put_off))
                .min();
            from = Instant::now() + rest(began.elapsed());
        }
    }

    /// The API server's part.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The whole.
    #[must_use]
    pub fn observed(&self) -> &Arc<Observed> {
        &self.observed
    }
}

/// What a report says beside what was known.
enum Said {
    Nothing,
    /// That an incarnation which was in this phase at this generation is in another.
    After((Phase, Generation)),
    News,
}

/// Takes in what is believed.
fn take_in(
    reports: &mut BTreeMap<Incarnation, Report>,
    workers: &BTreeMap<Identity, Worker>,
    incarnation: &Incarnation,
    report: &Report,
) -> Said {
    let Some(known) = reports.get_mut(incarnation) else {
        let report = shared(report.clone(), workers);
        reports.insert(incarnation.clone(), report);
        return Said::News;
    };
    let before = (known.phase, known.generation);
    if known.follow(report) {
        Said::After(before)
    } else {
        Said::Nothing
    }
}

/// What a node has said before a lie about its own pod is out of date.
fn retract(reports: &mut BTreeMap<Incarnation, Report>, incarnation: &Incarnation, lie: &Report) -> Said {
    let before = reports.get(incarnation);
    if before.is_none_or(|before| before.node != lie.node) {
        return Said::Nothing;
    }
    reports.remove(incarnation);
    Said::News
}

impl View {
    /// A node speaks for the pods that are bound to it, and for no others, and of nothing that cannot be.
    fn believes(
        &self,
        incarnation: &Incarnation,
        report: &Report,
        durable: &Durable,
    ) -> Result<bool, Unbelieved> {
        let pod = &incarnation.pod_uid;
        // The API server may show a pod, or where it is bound, later than its node does.
        let Some(Placed {
            node: Some(bound),
            place: Some((job, index)),
        }) = self.gathered.pods.get(pod)
        else {
            return Ok(false);
        };
        let Identity {
            job: said, index: at, ..
        } = &report.identity;
        if *bound != report.node && !mutants::is(Mutant::BelieveAnyNode) {
            return Err(Unbelieved::ForeignPod {
                pod: pod.clone(),
                bound: bound.clone(),
            });
        }
        if (&**said, at) != (job.as_str(), index) {
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
        Impossible::Counter => Unbelieved::ImpossibleCounter {
            pod,
            counter: report.counter,
            durable: durable.counter,
        },
    }
}

/// What is believed, and whether there is more.
fn reports(
    view: &View,
    workers: &BTreeMap<Identity, Worker>,
    durable: &Durable,
    link: &GroupLink,
    said: Vec<(Incarnation, Report)>,
) -> (BTreeMap<Incarnation, Report>, bool) {
    let mut believed = BTreeMap::new();
    let mut disbelieves = false;
    for (incarnation, report) in said {
        match view.believes(&incarnation, &report, durable) {
            Ok(true) => {
                believed.insert(incarnation, shared(report, workers));
            }
            Ok(false) => {}
            Err(why) => {
                disbelieves = true;
                link.disown(&incarnation, &report.node, &why);
            }
        }
    }
    (believed, disbelieves)
}

/// The report with the worker's own names, which all of its Job share.
fn shared(mut report: Report, workers: &BTreeMap<Identity, Worker>) -> Report {
    if let Some((identity, _)) = workers.get_key_value(&report.identity) {
        report.identity = identity.clone();
    }
    report
}

fn workers(view: &View, link: &GroupLink) -> BTreeMap<Identity, Worker> {
    let mut workers = view.gathered.workers.clone();
    let alone = workers.values().any(|worker| worker.scope == Scope::Worker);
    if alone && !view.nodes.iter().all(|node| link.restarts_workers(node)) {
        // Their daemons would not say it on.
        for worker in workers.values_mut() {
            worker.scope = Scope::Group;
        }
    }
    workers
}

#[cfg(test)]
mod tests;
