//! Writes of the status by a group's task, one at a time. Each may reach the API server, conflict
//! there, or be lost, as may its answer.

use std::sync::Arc;

use lockstep_api::{InPlaceKind, JobSet};
use lockstep_control_plane::controllers::restart as real;
use lockstep_core::restart::Durable;

use super::Group;
use crate::time::{MS, Time, span};
use crate::world::World;
use crate::world::event::request::{Fate, Kind, Written};
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::Refusal;

/// The state of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    Idle,
    InProgress,
    Retry(Time),
}

impl World {
    pub(crate) fn group_writes(&mut self, replica: ReplicaIndex, known: &Arc<JobSet>, wanted: &Durable) {
        let change = real::Change {
            durable: Some(wanted.clone()),
            kind: Some(if self.scenario.plain {
                InPlaceKind::Plain
            } else {
                InPlaceKind::Supervised
            }),
            conditions: None,
            counts_attempts: false,
        };
        let patch = Box::new(real::patch(known, &change, self.timestamp()));
        let life = self.replicas[replica].life;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        let Some(group) = &mut leader.group else { return };
        group.writing = Writing::InProgress;
        let uid = group.uid.clone();
        self.say(|| {
            format!(
                "replica {replica} writes {:?} generation {} counted {} epoch {}",
                wanted.phase, wanted.generation, wanted.counted_restarts, wanted.epoch
            )
        });
        let (fate, after) = self.request(Kind::Group, 1);
        let event = Event::GroupWriteArrives {
            replica,
            life,
            uid,
            patch,
            fate,
        };
        self.queue.push(self.now + after, event);
    }

    /// The write reaches the API server or is lost.
    pub(crate) fn group_write_arrives(
        &mut self,
        (replica, life): (ReplicaIndex, u32),
        uid: String,
        patch: &serde_json::Value,
        fate: Fate,
    ) {
        let mut answered_after = self.rng.span(MS / 2, 3 * MS);
        let arrives =
            self.replica_reaches_api(replica) && matches!(fate, Fate::Answered | Fate::AnswerLost { .. });
        let mut written = Written::Failed;
        if arrives {
            let before = self.api.jobset.clone();
            written = match self.api.patch_status(&uid, patch) {
                Ok(jobset) => {
                    self.truth.group_writes += 1;
                    self.check_status(before.as_deref(), &jobset);
                    Written::Done(jobset)
                }
                Err(Refusal::Conflict(jobset)) => Written::Conflict(jobset),
                Err(Refusal::Gone) => Written::Gone,
            };
        } else if !self.replica_reaches_api(replica) {
            answered_after = self.gives_up_after();
        }
        if let Fate::Lost { known_after } | Fate::AnswerLost { known_after } = fate {
            answered_after = known_after;
            written = Written::Failed;
        }
        if !matches!(written, Written::Done(_)) {
            self.note_failed_request(Kind::Group);
        }
        let event = Event::GroupWritten {
            replica,
            life,
            uid,
            written,
        };
        self.queue.push(self.now + answered_after, event);
    }

    pub(crate) fn group_written(&mut self, replica: ReplicaIndex, uid: &str, written: Written) {
        let now = self.now;
        let of_group = |group: &&mut Group| group.uid == uid;
        let leader = self.replicas[replica].leader.as_mut();
        let known =
            leader.and_then(|leader| Some(Arc::clone(&leader.group.as_mut().filter(of_group)?.known)));
        if let (Written::Conflict(jobset), Some(known)) = (&written, known)
            && self.has_jobset_fallen(replica, &known, jobset)
        {
            return;
        }
        let at = &mut self.replicas[replica];
        let Some(leader) = &mut at.leader else { return };
        let Some(group) = leader.group.as_mut().filter(of_group) else {
            return;
        };
        group.writing = Writing::Idle;
        match written {
            Written::Done(jobset) => {
                group.writes.done();
                at.cache.wrote_jobset(now, Arc::clone(&jobset));
                group.known = jobset;
            }
            Written::Conflict(jobset) => {
                group.known = jobset;
                let pause = span(group.writes.conflicted());
                if pause > 0 {
                    group.writing = Writing::Retry(now + pause);
                }
            }
            Written::Gone => {
                // The task ends. The manager starts no other one before the JobSet changes.
                group.link.withdraw();
                leader.group = None;
                return;
            }
            Written::Failed => {
                group.writing = Writing::Retry(now + span(group.writes.failed()));
            }
        }
        self.poke_group(replica);
    }
}
