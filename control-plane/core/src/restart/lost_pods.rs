//! The lost pods that the control plane replaces itself, without waiting for the Job controller's
//! back-off (10 s, doubled at each failure, up to 10 min).
//!
//! Promises:
//! - A pod is replaced once it has failed or is gone, never beside one that still exists and has
//!   not ended.
//! - A completed index gets no pod. Nor does a Job that ends, is suspended or belongs to another
//!   controller.
//! - The name of a replacement follows from the UID of the pod that it replaces. Any leader that
//!   repeats the decision after a crash decides the same name, which the API server accepts once.
//! - A place whose pods end before they ever run (if the kubelet rejects them, for example) is
//!   filled more and more slowly.
//!
//! UIDs come from failed pods that still exist, and from pods that were seen alive. A leader that
//! has not seen the pod of a place knows that there was one if all workers of the stage have run.
//! The name then follows from the Job and the group's generation, so every later leader decides the
//! same name. The lease of an earlier leader that knew the UID has ended before this one began to
//! decide. If its last request still arrives late, the Job controller deletes one of the two pods,
//! and the coordinator releases neither until then. Without any such knowledge, the replacement is
//! left to the Job controller.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::naming;

use super::{Generation, UnixNanos};

mod places;
mod pod;
#[cfg(test)]
mod tests;

pub use places::{is_open, places};
pub use pod::replacement_pod;

/// The first wait before a pod replaces one that never ran, milliseconds; doubled each time in a
/// row.
const FIRST_MS: u64 = 1_000;
/// The longest such wait, milliseconds.
const LONGEST_MS: u64 = 60_000;
/// How long a place stays empty before it is filled, if no pod was seen there, milliseconds. The
/// Job controller is about to fill it if it is new (a single Job was recreated or scaled up).
const UNSEEN_MS: u64 = 2_000;

/// The place of a pod in its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodPlace {
    /// Name of the Job.
    pub job: String,
    /// Completion index.
    pub index: u32,
}

/// The pods of one place with work left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// UID of the Job.
    pub job_uid: String,
    /// True if all workers of the stage have run since its Jobs were created: then this place has
    /// had a pod.
    pub started: bool,
    /// UIDs of the pods that have not ended; true if the kubelet reports the pod as Running.
    pub live: BTreeMap<String, bool>,
    /// UIDs of the pods that have failed.
    pub failed: BTreeSet<String>,
    /// UIDs of ended pods that are not the Job's: they belong to a former Job of the same name, or
    /// to none.
    pub strays: BTreeSet<String>,
    /// Names of all of them.
    pub names: BTreeSet<String>,
}

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Its place.
    pub place: PodPlace,
    /// UID of the Job.
    pub job_uid: String,
    /// Its name.
    pub name: String,
    /// UIDs of the pods of this place that are known to have ended. Any other pod there forbids the
    /// replacement.
    pub ended: BTreeSet<String>,
}

/// The pods to replace now, and when to check again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vacant {
    /// The pods to create, in the order of their places.
    pub replacements: Vec<Replacement>,
    /// When the next one is due.
    pub wake_at: Option<UnixNanos>,
}

/// Remembers the pods of one group, and decides which to replace.
#[derive(Debug, Clone, Default)]
pub struct LostPods {
    past: BTreeMap<PodPlace, Past>,
}

/// The history of a place.
#[derive(Debug, Clone, Default)]
struct Past {
    job_uid: String,
    /// The pod that was last seen alive there.
    last: Option<Seen>,
    /// How many pods in a row have ended without ever running.
    barren: u32,
    /// The loss that is waiting for its replacement.
    lost: Option<Loss>,
}

#[derive(Debug, Clone)]
struct Seen {
    uid: String,
    ran: bool,
}

#[derive(Debug, Clone)]
struct Loss {
    predecessor: String,
    due: UnixNanos,
}

impl LostPods {
    /// Checks all places of the group with work left. A second check of the same changes nothing.
    pub fn find_vacant(
        &mut self,
        places: &BTreeMap<PodPlace, Occupancy>,
        generation: Generation,
        now: UnixNanos,
    ) -> Vacant {
        self.past.retain(|place, past| {
            places
                .get(place)
                .is_some_and(|occupancy| occupancy.job_uid == past.job_uid)
        });
        let mut vacant = Vacant::default();
        for (place, occupancy) in places {
            let past = self.past.entry(place.clone()).or_insert_with(|| Past {
                job_uid: occupancy.job_uid.clone(),
                ..Past::default()
            });
            if !occupancy.live.is_empty() {
                past.lives(&occupancy.live);
                continue;
            }
            let Some(predecessor) = past.predecessor(place, occupancy, generation) else {
                continue;
            };
            let name = name(place, &predecessor);
            let due = past.lost(predecessor, place, occupancy, now);
            if due > now {
                vacant.wake_at = Some(vacant.wake_at.map_or(due, |at| at.min(due)));
                continue;
            }
            let mut ended = &occupancy.failed | &occupancy.strays;
            ended.extend(past.last.iter().map(|seen| seen.uid.clone()));
            vacant.replacements.push(Replacement {
                place: place.clone(),
                job_uid: occupancy.job_uid.clone(),
                name,
                ended,
            });
        }
        vacant
    }
}

impl Past {
    fn lives(&mut self, live: &BTreeMap<String, bool>) {
        self.lost = None;
        let known = self.last.as_ref().filter(|seen| live.contains_key(&seen.uid));
        let uid = known.map(|seen| &seen.uid).or_else(|| live.keys().next());
        let Some(uid) = uid.cloned() else { return };
        let ran = live.get(&uid).copied().unwrap_or(false) || known.is_some_and(|seen| seen.ran);
        self.last = Some(Seen { uid, ran });
    }

    /// The pod that the next pod's name follows from: one that has ended and has not been replaced
    /// yet. What every leader can see comes before what this one remembers.
    fn predecessor(&self, place: &PodPlace, occupancy: &Occupancy, generation: Generation) -> Option<String> {
        let unknown = || format!("{}/{}/{generation}", occupancy.job_uid, place.index);
        let remembered = self.last.iter().map(|seen| seen.uid.clone());
        let unseen = (self.last.is_none() && occupancy.started).then(unknown);
        let mut all = occupancy.failed.iter().cloned().chain(remembered).chain(unseen);
        all.find(|predecessor| !occupancy.names.contains(&name(place, predecessor)))
    }

    /// When the replacement is due.
    fn lost(
        &mut self,
        predecessor: String,
        place: &PodPlace,
        occupancy: &Occupancy,
        now: UnixNanos,
    ) -> UnixNanos {
        if let Some(loss) = &self.lost
            && loss.predecessor == predecessor
        {
            return loss.due;
        }
        let ran = match &self.last {
            // Its replacement has ended already and was never seen alive.
            Some(seen) => seen.ran && !occupancy.names.contains(&name(place, &seen.uid)),
            None => true,
        };
        let unseen = self.last.is_none() && occupancy.failed.is_empty();
        self.barren = if ran { 0 } else { self.barren.saturating_add(1) };
        let wait = match self.barren.checked_sub(1) {
            None if unseen => UNSEEN_MS,
            None => 0,
            Some(doublings) => FIRST_MS.saturating_mul(2_u64.saturating_pow(doublings)),
        };
        let due = now.plus_millis(wait.min(LONGEST_MS));
        self.lost = Some(Loss { predecessor, due });
        due
    }
}

fn name(place: &PodPlace, predecessor: &str) -> String {
    naming::replacement_pod_name(&place.job, place.index, predecessor)
}
