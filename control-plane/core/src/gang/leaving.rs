//! Pods being deleted that still hold their node, to explain what a gang waits for.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, labels};

use super::{Gang, Pod, message};
use crate::jobset::children::{Children, label};
use crate::jobset::pod::{GangPod, Leaving};

/// `None`: the pod is not being deleted, or holds no node.
fn of(pod: &Pod) -> Option<Leaving> {
    let node = pod.node.clone().filter(|_| pod.deleting && !pod.is_terminal())?;
    Some(Leaving {
        pod: pod.name.clone(),
        node,
        is_lost: pod.node_lost,
    })
}

/// The message about pods of a gang that are being deleted; `None`: there are none.
pub(super) fn of_gang(gang: &Gang) -> Option<String> {
    let pods = gang.parts.iter().flat_map(|part| &part.pods);
    message::leaving(pods.filter_map(|pod| of(pod)).collect())
}

/// The message about pods that keep the gangs of a JobSet from starting: those that must be gone
/// before their Jobs are resumed, and those on lost nodes.
pub(super) fn in_the_way(
    jobset: &JobSet,
    children: &Children<'_>,
    pods: &[GangPod],
    awaits_group: impl Fn(&str) -> bool,
) -> Option<String> {
    if pods.iter().all(|pod| pod.leaving.is_none()) {
        return None;
    }
    let replicated_jobs = jobset.spec.replicated_jobs.iter().map(|job| job.name.as_str());
    let awaited: BTreeSet<&str> = replicated_jobs.filter(|name| awaits_group(name)).collect();
    let is_of_awaited =
        |job: &&&Job| label(job, labels::REPLICATED_JOB_NAME).is_some_and(|name| awaited.contains(name));
    let active = children.active.iter().filter(is_of_awaited);
    let jobs: BTreeSet<&str> = active.filter_map(|job| job.metadata.name.as_deref()).collect();
    let leaving = pods.iter().filter_map(|pod| Some((pod, pod.leaving.as_ref()?)));
    let in_the_way = leaving.filter(|(pod, leaving)| leaving.is_lost || jobs.contains(pod.job.as_str()));
    message::leaving(in_the_way.map(|(_, leaving)| leaving.clone()).collect())
}
