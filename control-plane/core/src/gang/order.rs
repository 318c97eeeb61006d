//! The seats of a gang, and the order in which their pods are released.
//!
//! Each expected pod of a replicatedJob is a seat, numbered by Job index, then completion index.
//! The seats below the minimum come before all others. In both parts, replicatedJobs of higher
//! priority come first; at equal priority the seats of all replicatedJobs alternate.

use std::cmp::Reverse;
use std::sync::Arc;

use lockstep_mutants::mutant;

use super::{Gang, Needs, Part, Pod, PodPhase};

/// One seat.
#[derive(Clone, Debug)]
pub(super) struct Seat<'a> {
    /// Index of its replicatedJob in the gang.
    pub(super) part: usize,
    /// Its number in the replicatedJob, from 0.
    pub(super) rank: u32,
    /// True if it belongs to the minimum.
    pub(super) below: bool,
    /// True if its work is done.
    pub(super) done: bool,
    /// The pod on the seat.
    pub(super) pod: Option<&'a Pod>,
}

impl Seat<'_> {
    /// True if it no longer needs room.
    pub(super) fn is_bound(&self) -> bool {
        self.done || self.pod.is_some_and(|pod| pod.node.is_some())
    }
}

/// All seats of a gang, in order.
pub(super) fn seats(gang: &Gang) -> Vec<Seat<'_>> {
    let mut seats: Vec<Seat<'_>> = Vec::new();
    for (index, part) in gang.parts.iter().enumerate() {
        of_part(index, part, &mut seats);
    }
    let priorities: Vec<i32> = gang.parts.iter().map(Part::priority).collect();
    seats.sort_by_key(|seat| {
        let priority = priorities[seat.part];
        (!seat.below, Reverse(priority), seat.rank, seat.part)
    });
    seats
}

impl Part {
    /// The needs of a seat's pod, from the template.
    pub(super) fn needs_of(&self, rank: u32) -> Option<&Arc<Needs>> {
        let job = rank.checked_div(self.parallelism)?;
        self.needs.get(usize::try_from(job).ok()?)
    }

    /// The highest priority of all its pods.
    pub(super) fn priority(&self) -> i32 {
        self.pods.iter().map(|pod| pod.priority).max().unwrap_or(0)
    }
}

/// True if the minimum of the gang needs this worker.
fn is_below(part: &Part, rank: u32) -> bool {
    mutant!(OptionalCount => true);
    rank < part.minimum
}

fn of_part<'a>(index: usize, part: &'a Part, seats: &mut Vec<Seat<'a>>) {
    let first = seats.len();
    let total = part.replicas.saturating_mul(part.parallelism);
    seats.extend((0..total).map(|rank| Seat {
        part: index,
        rank,
        below: is_below(part, rank),
        done: part.done.contains(&rank),
        pod: None,
    }));
    let seats = &mut seats[first..];
    if part.indexed {
        for pod in &part.pods {
            let rank = rank(part, pod.job_index, pod.index);
            let Some(seat) = rank.and_then(|rank| seats.get_mut(rank)) else {
                continue;
            };
            seat.done |= pod.phase == PodPhase::Succeeded;
            if is_better(pod, seat.pod) {
                seat.pod = Some(pod);
            }
        }
        return;
    }
    // Any pod of the Job can take any of its seats. A pod that has come further takes an earlier
    // one.
    let pods = part.pods.iter().map(AsRef::as_ref);
    let mut pods: Vec<&Pod> = pods.filter(|pod| is_live(pod)).collect();
    pods.sort_by_key(|pod| (pod.node.is_none(), pod.gated, pod.index, pod.name.as_str()));
    for pod in pods {
        let first = rank(part, pod.job_index, Some(0)).unwrap_or(seats.len());
        let end = first.saturating_add(part.parallelism as usize).min(seats.len());
        let free = seats.get_mut(first..end).into_iter().flatten();
        if let Some(seat) = { free }.find(|seat| !seat.done && seat.pod.is_none()) {
            seat.pod = Some(pod);
        }
    }
}

fn rank(part: &Part, job: u32, index: Option<u32>) -> Option<usize> {
    let index = index.filter(|index| *index < part.parallelism)?;
    let rank = job.checked_mul(part.parallelism)?.checked_add(index)?;
    usize::try_from(rank).ok()
}

/// True if the pod can still do the seat's work.
fn is_live(pod: &Pod) -> bool {
    !pod.deleting && !pod.is_terminal()
}

/// True if the pod takes the seat rather than the other one.
fn is_better(pod: &Pod, than: Option<&Pod>) -> bool {
    is_live(pod) && than.is_none_or(|than| than.node.is_none() && pod.node.is_some())
}
