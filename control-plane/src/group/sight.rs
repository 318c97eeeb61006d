//! What the coordinator decides on: the API server's part, and beside it what the nodes say, of which only the news is taken in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::JobSet;
use lockstep_core::restart::{
    Durable, Identity, Impossible, Incarnation, Observed, Placed, Policy, Report, Scope, Worker,
};

use super::observe::View;
use crate::hub::{GroupLink, Unbelieved};

/// How long reports are kept of pods that the API server does not show.
const KEPT: Duration = Duration::from_secs(60);

/// What is seen of a group, from one look at the API server to the next.
pub struct Sight {
    view: View,
    observed: Arc<Observed>,
}

impl Sight {
    /// What there is now. The JobSet's status says what is `durable`.
    #[must_use]
    pub fn new(view: View, jobset: &JobSet, link: &GroupLink, durable: Durable, replaces_pods: bool) -> Self {
        let gathered = &view.gathered;
        // Before anything is asked of them: a hello that comes later is news.
        link.look_at(&view.nodes);
        link.forget_pods(&gathered.pods, KEPT);
        let observed = Observed {
            reports: reports(&view, &durable, link),
            workers: workers(&view, link),
            old_pods: gathered.old_pods,
            old_pod: gathered.old_pod.clone(),
            finished_stages: gathered.finished_stages.clone(),
            unwanted_jobs: gathered.unwanted_jobs.clone(),
            waiting_jobs: gathered.waiting_jobs.clone(),
            heard_nodes: heard_nodes(&view, link),
            durable,
            policy: Policy {
                replaces_pods,
                ..gathered.policy.clone()
            },
            suspended: jobset.is_suspended(),
            // It is copied to the status, and one that is too long is none.
            manual_request: jobset.restart_request().ok().flatten().map(str::to_owned),
            alone_request: jobset.alone_request().ok().flatten(),
        };
        let observed = Arc::new(observed);
        Self { view, observed }
    }

    /// Takes in what the nodes have said since the last time.
    pub fn listen(&mut self, link: &GroupLink) {
        let view = &self.view;
        let Some(news) = link.news() else {
            let observed = Arc::make_mut(&mut self.observed);
            observed.reports = reports(view, &observed.durable, link);
            observed.workers = workers(view, link);
            observed.heard_nodes = heard_nodes(view, link);
            return;
        };
        let known = &self.observed;
        let news = news.into_iter();
        let (believed, mut lies): (Vec<_>, Vec<_>) =
            news.partition(|said| view.believes(said, &known.durable, link));
        // What a node has said before a lie about its own pod is out of date.
        lies.retain(|(incarnation, lie)| {
            let before = known.reports.get(incarnation);
            before.is_some_and(|before| before.node == lie.node)
        });
        if believed.is_empty() && lies.is_empty() {
            return;
        }
        let reports = &mut Arc::make_mut(&mut self.observed).reports;
        for (incarnation, _) in lies {
            reports.remove(&incarnation);
        }
        reports.extend(believed);
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

impl View {
    /// A node speaks for the pods that are bound to it, and for no others, and of nothing that cannot be.
    fn believes(
        &self,
        (incarnation, report): &(Incarnation, Report),
        durable: &Durable,
        link: &GroupLink,
    ) -> bool {
        let pod = &incarnation.pod_uid;
        // The API server may show a pod, or where it is bound, later than its node does.
        let Some(Placed {
            node: Some(bound),
            place: Some((job, index)),
        }) = self.gathered.pods.get(pod)
        else {
            return false;
        };
        let Identity {
            job: said, index: at, ..
        } = &report.identity;
        let why = if *bound != report.node {
            Unbelieved::ForeignPod {
                pod: pod.clone(),
                bound: bound.clone(),
            }
        } else if (said, at) != (job, index) {
            Unbelieved::OtherWorker {
                pod: pod.clone(),
                worker: report.identity.clone(),
            }
        } else {
            let Some(impossible) = durable.contradicts(report) else {
                return true;
            };
            unbelieved(impossible, pod, report, durable)
        };
        link.disown(incarnation, &report.node, &why);
        false
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

fn reports(view: &View, durable: &Durable, link: &GroupLink) -> BTreeMap<Incarnation, Report> {
    let all = link.reports().into_iter();
    all.filter(|said| view.believes(said, durable, link)).collect()
}

fn workers(view: &View, link: &GroupLink) -> BTreeMap<Identity, Worker> {
    let mut workers = view.gathered.workers.clone();
    let alone = workers.values().any(|worker| worker.scope == Scope::Worker);
    if alone && !view.nodes.iter().all(|node| link.restarts_alone(node)) {
        // Their daemons would not say it on.
        for worker in workers.values_mut() {
            worker.scope = Scope::Group;
        }
    }
    workers
}

fn heard_nodes(view: &View, link: &GroupLink) -> BTreeSet<String> {
    view.nodes
        .iter()
        .filter(|node| link.heard(node))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests;
