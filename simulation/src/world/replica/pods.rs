//! Pods that the leader creates and deletes. It replaces lost pods with new ones, which the Job
//! controller adopts, and deletes those of workers that failed too often.

use std::collections::BTreeMap;

use lockstep_core::common::retry::delay;
use lockstep_core::restart::{
    Condemned, Generation, LostPods, Occupancy, PodPlace, Replacement, UnixNanos, is_open, replacement_pod,
};

use crate::time::{SEC, Time, span};
use crate::world::World;
use crate::world::event::request::{Fate, Kind, PodRequest};
use crate::world::event::{Event, ReplicaIndex};

/// How long a completed request is believed although no watch shows it.
const BELIEVED: Time = 10 * SEC;

/// What a group remembers of its pods, and its requests about them.
#[derive(Default)]
pub(crate) struct Pods {
    lost: LostPods,
    creations: BTreeMap<PodPlace, Attempt>,
    deletions: BTreeMap<String, Attempt>,
}

#[derive(Debug, Default)]
struct Attempt {
    name: String,
    failures: u32,
    under_way: bool,
    again: Time,
}

impl Attempt {
    /// Begins the attempt if it is due. Returns true if it begins.
    fn begin(&mut self, now: Time) -> bool {
        let begins = !self.under_way && self.again <= now;
        self.under_way |= begins;
        begins
    }

    fn end(&mut self, now: Time, done: bool) {
        self.under_way = false;
        self.failures = if done { 0 } else { self.failures + 1 };
        self.again = now
            + if done {
                BELIEVED
            } else {
                span(delay(self.failures))
            };
    }
}

impl Pods {
    /// The requests to send now, and when to look again.
    pub(crate) fn look(
        &mut self,
        places: Option<&BTreeMap<PodPlace, Occupancy>>,
        (generation, replace): (Generation, bool),
        condemned: Vec<Condemned>,
        (now, clock): (Time, UnixNanos),
    ) -> (Vec<PodRequest>, Option<Time>) {
        let mut requests = Vec::new();
        let mut due = None;
        let mut wanted = Vec::new();
        if let Some(places) = places {
            let vacant = self.lost.find_vacant(places, generation, clock);
            due = vacant
                .wake_at
                .map(|at| now + u64::try_from(at.0.saturating_sub(clock.0)).unwrap_or(0));
            wanted = vacant.replacements;
        }
        wanted.retain(|_| replace);
        self.creations.retain(|place, attempt| {
            let is_wanted = |wanted: &Replacement| wanted.place == *place && wanted.name == attempt.name;
            attempt.under_way || wanted.iter().any(is_wanted)
        });
        for replacement in wanted {
            let attempt = self.creations.entry(replacement.place.clone()).or_default();
            if attempt.name.is_empty() {
                attempt.name.clone_from(&replacement.name);
            }
            if attempt.begin(now) {
                requests.push(PodRequest::Look(replacement));
            }
        }
        self.deletions
            .retain(|uid, attempt| attempt.under_way || condemned.iter().any(|pod| pod.pod_uid == *uid));
        for Condemned { pod_uid, .. } in condemned {
            if self.deletions.entry(pod_uid.clone()).or_default().begin(now) {
                requests.push(PodRequest::Delete(pod_uid));
            }
        }
        let attempts = self.creations.values().chain(self.deletions.values());
        let again = attempts
            .filter(|attempt| !attempt.under_way)
            .map(|attempt| attempt.again);
        (requests, again.chain(due).min())
    }

    fn answered(&mut self, now: Time, request: &PodRequest, done: bool) {
        let attempt = match request {
            PodRequest::Look(replacement) | PodRequest::Create(replacement) => {
                self.creations.get_mut(&replacement.place)
            }
            PodRequest::Delete(uid) => self.deletions.get_mut(uid),
        };
        if let Some(attempt) = attempt {
            attempt.end(now, done);
        }
    }
}

impl World {
    /// Sends a request of a group about one of its pods.
    pub(crate) fn send_pod_request(&mut self, replica: ReplicaIndex, group: &str, request: PodRequest) {
        let life = self.replicas[replica].life;
        // One reads the Job, and one its pods.
        let number = if matches!(request, PodRequest::Look(_)) {
            2
        } else {
            1
        };
        let (fate, after) = self.request(Kind::Pods, number);
        let event = Event::PodRequest {
            replica,
            life,
            group: group.to_owned(),
            request: Box::new(request),
            fate,
        };
        self.queue.push(self.now + after, event);
    }

    /// The request reaches the API server or is lost.
    pub(crate) fn pod_request(
        &mut self,
        (replica, life): (ReplicaIndex, u32),
        group: String,
        request: Box<PodRequest>,
        fate: Fate,
    ) {
        let mut done = false;
        if self.is_carried_out(replica, fate) {
            done = true;
            match &*request {
                PodRequest::Look(replacement) => {
                    let missing = self.is_missing(replacement);
                    if missing && fate == Fate::Answered && self.replica_lives(replica, life) {
                        let create = PodRequest::Create(replacement.clone());
                        return self.send_pod_request(replica, &group, create);
                    }
                }
                PodRequest::Create(replacement) => self.create_replacement(replica, replacement),
                PodRequest::Delete(uid) => {
                    self.say(|| format!("replica {replica} deletes {uid}"));
                    self.delete_pod(uid);
                }
            }
        }
        let (after, done) = self.answer(replica, Kind::Pods, fate, done);
        let event = Event::PodAnswered {
            replica,
            life,
            group,
            request,
            done,
        };
        self.queue.push(self.now + after, event);
    }

    /// True if the Job wants a pod for this index and has only pods that are known to have ended.
    fn is_missing(&self, replacement: &Replacement) -> bool {
        let PodPlace { job, index } = &replacement.place;
        let wants = self.api.jobs.get(job).is_some_and(|job| {
            job.metadata.uid.as_ref() == Some(&replacement.job_uid)
                && is_open(job, *index)
                && replacement_pod(job, *index, &replacement.name).is_some()
        });
        let mut there = self
            .api
            .pods
            .values()
            .filter(|pod| pod.job == *job && pod.index == *index);
        wants && there.all(|pod| replacement.ended.contains(&pod.uid))
    }

    fn create_replacement(&mut self, replica: ReplicaIndex, replacement: &Replacement) {
        let exists = self.api.pods.values().any(|pod| pod.name == replacement.name);
        let Some(job) = self.api.jobs.get(&replacement.place.job).cloned() else {
            return;
        };
        if exists || job.metadata.uid.as_ref() != Some(&replacement.job_uid) {
            return;
        }
        self.say(|| format!("replica {replica} replaces a pod by {}", replacement.name));
        self.create_pod(&job, replacement.place.index, Some(&replacement.name));
    }

    pub(crate) fn pod_answered(
        &mut self,
        replica: ReplicaIndex,
        group: &str,
        request: &PodRequest,
        done: bool,
    ) {
        let now = self.now;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        if let Some(group) = leader.group.as_mut().filter(|known| known.uid == group) {
            group.pods.answered(now, request, done);
            self.poke_group(replica);
        }
    }
}
