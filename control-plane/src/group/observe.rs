//! Puts together what the coordinator sees: stores, reports, and what is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, annotations, labels};
use lockstep_core::pod::PodSummary;
use lockstep_core::restart::{self, Durable, Gathered, Observed, Occupancy, Place, Policy, Scope};

use crate::hub::{GroupLink, GroupPolicy, Published, TerminalCode};
use crate::watch::{Stores, WatchedPod};

/// The API server's part, with what the hub needs of it.
pub struct View {
    /// What the coordinator decides on.
    pub gathered: Gathered,
    /// What the nodes need besides.
    pub policy: GroupPolicy,
    /// Nodes that hold live pods of the group.
    pub nodes: BTreeSet<String>,
    /// Where there should be pods.
    pub places: BTreeMap<Place, Occupancy>,
}

/// Reads the stores for one JobSet, whose status says what is `durable`.
pub(super) fn view(stores: &Stores, jobset: &JobSet, durable: &Durable) -> View {
    let uid = jobset.uid_str();
    let key = ObjectRef::from_obj(jobset);
    let jobs: Vec<Arc<Job>> = stores
        .jobs_of(&key)
        .into_iter()
        .filter(|job| has_uid(job.metadata.labels.as_ref(), uid))
        .collect();
    let pods: Vec<Arc<WatchedPod>> = stores
        .pods_of(&key)
        .into_iter()
        .filter(|pod| pod.summary.jobset_uid.as_deref() == Some(uid))
        .collect();
    let pods: Vec<&PodSummary> = pods.iter().map(|pod| &pod.summary).collect();
    view_of(jobset, &jobs, &pods, durable)
}

/// The same of Jobs and pods that are known to be the JobSet's.
#[must_use]
pub fn view_of(jobset: &JobSet, jobs: &[Arc<Job>], pods: &[&PodSummary], durable: &Durable) -> View {
    let recreations = jobset.restarts();
    let pods = || pods.iter().copied();
    let gathered = restart::gather(jobset, jobs, pods(), recreations);
    let places = restart::places(jobs, pods(), recreations, &durable.started);
    // Where only ended pods are left, nobody is left to be told anything.
    let nodes = pods()
        .filter(|pod| !pod.is_terminal())
        .filter_map(|pod| pod.node.clone())
        .collect();
    let policy = GroupPolicy {
        grace_ms: u32::try_from(restart::grace_ms(jobset)).unwrap_or(u32::MAX),
        terminal: gathered
            .policy
            .terminal
            .iter()
            .map(|rule| TerminalCode {
                job: rule.job.clone(),
                container: rule.container.clone().unwrap_or_default(),
                negated: rule.negated,
                codes: rule.codes.clone(),
            })
            .collect(),
        heartbeat_timeout_ms: restart::heartbeat_timeout_ms(jobset),
    };
    View {
        gathered,
        policy,
        nodes,
        places,
    }
}

fn has_uid(labels: Option<&BTreeMap<String, String>>, uid: &str) -> bool {
    labels
        .and_then(|labels| labels.get(labels::JOBSET_UID))
        .is_some_and(|label| label == uid)
}

/// What the coordinator decides on.
#[must_use]
pub fn observed(
    view: &View,
    jobset: &JobSet,
    link: &GroupLink,
    durable: Durable,
    replaces_pods: bool,
) -> Observed {
    let gathered = &view.gathered;
    let reports = link
        .reports()
        .into_iter()
        // A node speaks for the pods that are bound to it, and for no others.
        .filter(|(incarnation, report)| {
            gathered
                .pods
                .get(&incarnation.pod_uid)
                .is_some_and(|node| node.as_ref() == Some(&report.node))
        })
        .collect();
    let mut workers = gathered.workers.clone();
    if !view.nodes.iter().all(|node| link.restarts_alone(node)) {
        // Their daemons would not say it on.
        for worker in workers.values_mut() {
            worker.scope = Scope::Group;
        }
    }
    Observed {
        workers,
        old_pods: gathered.old_pods,
        old_pod: gathered.old_pod.clone(),
        finished_stages: gathered.finished_stages.clone(),
        reports,
        heard_nodes: view
            .nodes
            .iter()
            .filter(|node| link.heard(node))
            .cloned()
            .collect(),
        durable,
        policy: Policy {
            replaces_pods,
            ..gathered.policy.clone()
        },
        suspended: jobset.is_suspended(),
        manual_request: jobset.annotation(annotations::RESTART_REQUEST).map(str::to_owned),
    }
}

/// What the nodes are told.
#[must_use]
pub fn published(view: &View, desired: restart::Desired) -> Published {
    Published {
        desired,
        policy: view.policy.clone(),
        nodes: view.nodes.clone(),
    }
}

#[cfg(test)]
mod tests;
