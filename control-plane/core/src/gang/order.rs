//! The pods that a gang expects, and the order in which they are released.
//!
//! Each expected pod has an ordinal in its replicatedJob, which counts by Job index, then by
//! completion index. The expected pods below the minimum come before all others. In both parts,
//! replicatedJobs of higher priority come first; at equal priority the pods of all replicatedJobs
//! alternate.

use std::cmp::Reverse;
use std::sync::Arc;

use lockstep_mutants::mutant;

use super::{Gang, Needs, Part, Pod, PodPhase};

/// One of the pods that a gang expects.
#[derive(Clone, Debug)]
pub(super) struct ExpectedPod<'a> {
    /// Index of its replicatedJob in the gang.
    pub(super) part: usize,
    /// Its ordinal in the replicatedJob: Job index times parallelism, plus completion index.
    pub(super) ordinal: u32,
    /// True if it belongs to the minimum.
    pub(super) in_minimum: bool,
    /// True if its work is done.
    pub(super) done: bool,
    /// The pod that does its work, if there is one.
    pub(super) pod: Option<&'a Pod>,
}

impl ExpectedPod<'_> {
    /// True if it no longer needs room.
    pub(super) fn is_bound(&self) -> bool {
        self.done || self.pod.is_some_and(|pod| pod.node.is_some())
    }
}

/// All pods that a gang expects, in order.
pub(super) fn expected_pods(gang: &Gang) -> Vec<ExpectedPod<'_>> {
    let mut expected_pods: Vec<ExpectedPod<'_>> = Vec::new();
    for (index, part) in gang.parts.iter().enumerate() {
        of_part(index, part, &mut expected_pods);
    }
    let priorities: Vec<i32> = gang.parts.iter().map(Part::priority).collect();
    expected_pods.sort_by_key(|expected| {
        let priority = priorities[expected.part];
        (
            !expected.in_minimum,
            Reverse(priority),
            expected.ordinal,
            expected.part,
        )
    });
    expected_pods
}

impl Part {
    /// The needs of the pod with this ordinal, from the template.
    pub(super) fn needs_of(&self, ordinal: u32) -> Option<&Arc<Needs>> {
        let job = ordinal.checked_div(self.parallelism)?;
        self.needs.get(usize::try_from(job).ok()?)
    }

    /// The highest priority of all its pods.
    pub(super) fn priority(&self) -> i32 {
        self.pods.iter().map(|pod| pod.priority).max().unwrap_or(0)
    }
}

/// True if the minimum of the gang needs this worker.
fn is_in_minimum(part: &Part, ordinal: u32) -> bool {
    mutant!(OptionalCount => true);
    ordinal < part.minimum
}

fn of_part<'a>(index: usize, part: &'a Part, expected_pods: &mut Vec<ExpectedPod<'a>>) {
    let first = expected_pods.len();
    let total = part.replicas.saturating_mul(part.parallelism);
    expected_pods.extend((0..total).map(|ordinal| ExpectedPod {
        part: index,
        ordinal,
        in_minimum: is_in_minimum(part, ordinal),
        done: part.done.contains(&ordinal),
        pod: None,
    }));
    let expected_pods = &mut expected_pods[first..];
    if part.indexed {
        for pod in &part.pods {
            let ordinal = ordinal(part, pod.job_index, pod.index);
            let Some(expected) = ordinal.and_then(|ordinal| expected_pods.get_mut(ordinal)) else {
                continue;
            };
            expected.done |= pod.phase == PodPhase::Succeeded;
            if is_better(pod, expected.pod) {
                expected.pod = Some(pod);
            }
        }
        return;
    }
    // Any pod of the Job can do the work of any other. One that has come further gets a lower
    // ordinal.
    let pods = part.pods.iter().map(AsRef::as_ref);
    let mut pods: Vec<&Pod> = pods.filter(|pod| is_live(pod)).collect();
    pods.sort_by_key(|pod| (pod.node.is_none(), pod.gated, pod.index, pod.name.as_str()));
    for pod in pods {
        let first = ordinal(part, pod.job_index, Some(0)).unwrap_or(expected_pods.len());
        let end = first
            .saturating_add(part.parallelism as usize)
            .min(expected_pods.len());
        let free = expected_pods.get_mut(first..end).into_iter().flatten();
        if let Some(expected) = { free }.find(|expected| !expected.done && expected.pod.is_none()) {
            expected.pod = Some(pod);
        }
    }
}

fn ordinal(part: &Part, job: u32, index: Option<u32>) -> Option<usize> {
    let index = index.filter(|index| *index < part.parallelism)?;
    let ordinal = job.checked_mul(part.parallelism)?.checked_add(index)?;
    usize::try_from(ordinal).ok()
}

/// True if the pod can still do its work.
fn is_live(pod: &Pod) -> bool {
    !pod.deleting && !pod.is_terminal()
}

/// True if the pod, rather than the other one, does the work of the expected pod.
fn is_better(pod: &Pod, than: Option<&Pod>) -> bool {
    is_live(pod) && than.is_none_or(|than| than.node.is_none() && pod.node.is_some())
}
