//! The task of a group. It does what the control plane's task does around the real coordinator.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, labels};
use lockstep_control_plane::controllers::restart as real;
use lockstep_control_plane::hub::GroupLink;
use lockstep_core::common::retry::StatusWrites;
use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{Announcement, Coordinator, Durable, Generation, GroupPhase, Policy, UnixNanos};

use self::status_write::Writing;
use crate::time::{Time, US, unix};
use crate::world::World;
use crate::world::event::request::Stepped;
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::version_of;
use crate::world::replica::cache::Cache;
use crate::world::replica::pods::Pods;

mod status_write;

/// One group's task.
pub(crate) struct Group {
    pub(crate) uid: String,
    pub(crate) link: GroupLink,
    pub(crate) coordinator: Coordinator,
    known: Arc<JobSet>,
    last: Option<LastObservation>,
    writing: Writing,
    writes: StatusWrites,
    generation: Generation,
    pub(crate) pods: Pods,
    /// When to take the next step in any case.
    again_at: Option<Time>,
    /// Its state, and when it entered it.
    pub(crate) phase: (Option<GroupPhase>, Time),
}

/// The last observation.
struct LastObservation {
    observation: real::Observation,
    /// The JobSet at that time, and the number of changes that the cache had applied.
    known: Arc<JobSet>,
    changes: u64,
}

/// A new observation.
struct Look {
    observation: real::Observation,
    /// How urgent the changes are.
    urgency: real::Urgency,
    /// The reports of nodes, applied one by one, are not what a full read shows.
    missed: bool,
}

impl Group {
    /// Nothing is being written or waits to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.writing == Writing::Idle
    }

    /// The JobSet as its coordinator has last seen it.
    pub(crate) fn last_seen(&self) -> &JobSet {
        self.last.as_ref().map_or(&self.known, |last| &last.known)
    }

    fn remember(&mut self, observation: real::Observation, changes: u64) {
        self.last = Some(LastObservation {
            observation,
            known: Arc::clone(&self.known),
            changes,
        });
    }

    fn view(&self, cache: &Cache, durable: &Durable) -> real::View {
        let of_group = |job: &Arc<Job>| {
            let labels = job.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(labels::JOBSET_UID)) == Some(&self.uid)
        };
        let jobs: Vec<Arc<Job>> = cache.seen_jobs().into_iter().filter(of_group).collect();
        let pods: Vec<_> = cache
            .pods
            .values()
            .filter(|pod| pod.jobset_uid.as_ref() == Some(&self.uid))
            .map(AsRef::as_ref)
            .collect();
        real::view_of(&self.known, jobs, &pods, durable)
    }

    fn look(&mut self, cache: &Cache, replaces_pods: bool) -> Look {
        if let Some(seen) = &cache.jobset
            && seen.uid_str() == self.uid
            && version_of(&seen.metadata) >= version_of(&self.known.metadata)
        {
            self.known = Arc::clone(seen);
        }
        let durable = durable_of(&self.known);
        let last = self.last.take();
        let last = last.filter(|last| Arc::ptr_eq(&last.known, &self.known));
        // The same objects make the same view.
        let same = last.as_ref().filter(|last| last.changes == cache.changes);
        let mut view = match same {
            Some(last) => last.observation.view().clone(),
            None => self.view(cache, &durable),
        };
        view.gathered.policy.replaces_pods = replaces_pods;
        // If nothing else has changed, only the reports of nodes can be new.
        let last = match same {
            Some(_) => last,
            None => last.filter(|last| *last.observation.view() == view),
        };
        let mut urgency = real::Urgency::Step;
        let updated = last.map(|mut last| {
            urgency = last.observation.listen(&self.link);
            last.observation
        });
        let full = real::Observation::new(view, &self.known, &self.link, durable);
        let missed = updated
            .as_ref()
            .is_some_and(|updated| updated.observed() != full.observed());
        Look {
            observation: updated.unwrap_or(full),
            urgency,
            missed,
        }
    }
}

/// When a replica's clock will show `at`, if it shows `clock` now.
fn later(now: Time, clock: UnixNanos, at: UnixNanos) -> Time {
    now + u64::try_from(at.0.saturating_sub(clock.0)).unwrap_or(0)
}

/// The restart in place that the status shows.
pub(crate) fn durable_of(jobset: &JobSet) -> Durable {
    let status = jobset.status.as_ref();
    real::durable_from(status.and_then(|status| status.in_place_restart.as_ref()))
}

impl World {
    /// The time by the clock of this replica's process.
    fn replica_clock(&self, replica: ReplicaIndex) -> UnixNanos {
        UnixNanos(unix(self.now, self.replicas[replica].clock_ahead))
    }

    /// Something may have changed for the group.
    pub(crate) fn poke_group(&mut self, replica: ReplicaIndex) {
        if let Some(leader) = &mut self.replicas[replica].leader {
            leader.owes_step = true;
        }
        self.reports_changed(replica);
    }

    /// A node may have reported something.
    pub(crate) fn reports_changed(&mut self, replica: ReplicaIndex) {
        let at = self.now + self.rng.span(20 * US, 300 * US);
        self.group_step_at(replica, at);
    }

    fn group_step_at(&mut self, replica: ReplicaIndex, at: Time) {
        let life = self.replicas[replica].life;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        let at = at.max(self.now + 1);
        if leader.group_due.is_none_or(|due| at < due) {
            leader.group_due = Some(at);
            self.queue.push(
                at,
                Event::GroupStep {
                    replica,
                    life,
                    due: at,
                },
            );
        }
    }

    /// Starts the group's task with its JobSet and ends it with it, and takes a step.
    pub(crate) fn group_event(&mut self, replica: ReplicaIndex, due: Time) {
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        if leader.group_due != Some(due) {
            return;
        }
        leader.group_due = None;
        if leader.is_stepping {
            return;
        }
        let jobset = self.replicas[replica].cache.jobset.clone();
        let jobset = jobset.filter(|jobset| real::is_group(jobset, &Agents::ByNode));
        let clock = self.replica_clock(replica);
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        let ends = leader
            .group
            .as_ref()
            .is_some_and(|group| jobset.as_ref().is_none_or(|jobset| jobset.uid_str() != group.uid));
        if ends && let Some(group) = leader.group.take() {
            group.link.withdraw();
        }
        if leader.group.is_none()
            && let Some(jobset) = jobset
        {
            let link = leader.registry.claim(jobset.uid_str());
            let recovery_ms = Policy::default().recovery_ms;
            let coordinator = Coordinator::recover(link.epoch(), &durable_of(&jobset), recovery_ms, clock);
            leader.group = Some(Group {
                uid: jobset.uid_str().to_owned(),
                link,
                coordinator,
                known: jobset,
                last: None,
                writing: Writing::Idle,
                writes: StatusWrites::default(),
                generation: Generation::default(),
                pods: Pods::default(),
                again_at: None,
                phase: (None, 0),
            });
        }
        self.group_step(replica, clock);
        self.hub_flush(replica);
    }

    fn group_step(&mut self, replica: ReplicaIndex, clock: UnixNanos) {
        let (now, replaces_pods) = (self.now, self.scenario.replaces_pods);
        let (cache, leader) = {
            let replica = &mut self.replicas[replica];
            (&replica.cache, replica.leader.as_mut())
        };
        let Some(leader) = leader else { return };
        let owes_step = std::mem::take(&mut leader.owes_step);
        let Some(group) = leader.group.as_mut() else {
            return;
        };
        if matches!(group.writing, Writing::Retry(at) if at <= now) {
            group.writing = Writing::Idle;
        }
        let Look {
            mut observation,
            urgency,
            missed,
        } = group.look(cache, replaces_pods);
        let is_due = group.again_at.is_some_and(|at| at <= now);
        if urgency < real::Urgency::Hello && !owes_step && !is_due {
            group.remember(observation, cache.changes);
            let again_at = group.again_at;
            if missed {
                self.violate("a report of a node was missed".to_owned());
            }
            if let Some(at) = again_at {
                self.group_step_at(replica, at);
            }
            return;
        }
        let view = observation.view();
        let out = group.coordinator.step(observation.observed(), clock);
        let phase = group.coordinator.phase();
        let generation = group.coordinator.generation();
        let changed = group.phase.0 != Some(phase) || generation != group.generation;
        if changed {
            group.phase = (Some(phase), now);
            group.generation = generation;
        }
        let published = out.desired.map(|desired| real::published(view, desired));
        let write = out.status.filter(|_| group.writing == Writing::Idle);
        let retry_at = match group.writing {
            Writing::Retry(at) => Some(at),
            _ => None,
        };
        let (requests, pods_at) = group.pods.look(
            replaces_pods.then_some(&view.places),
            (generation, out.replace),
            out.condemned,
            (now, clock),
        );
        let wake_at = out.wake_at.map(|at| later(now, clock, at));
        let again_at = [wake_at, retry_at, pods_at].into_iter().flatten().min();
        group.again_at = again_at;
        let uid = group.uid.clone();
        let known = Arc::clone(&group.known);
        observation.wait_for(out.step_delay);
        group.remember(observation, cache.changes);
        if missed {
            self.violate("a report of a node was missed".to_owned());
        }
        if changed {
            self.say(|| format!("replica {replica}: the group is {phase} at generation {generation}"));
        }
        self.note_generation(generation.0);
        self.announced(replica, &known, &out.announcements);
        if let Some(at) = again_at {
            self.group_step_at(replica, at);
        }
        let stepped = Stepped {
            group: uid,
            known,
            published,
            status: write,
            pods: requests,
        };
        self.stepped(replica, stepped);
    }

    fn announced(&mut self, replica: ReplicaIndex, known: &JobSet, announcements: &[Announcement]) {
        for announcement in announcements {
            self.say(|| format!("replica {replica} announces {announcement:?}"));
            self.note_announcement(announcement);
            self.check_in_place(replica, known, announcement);
        }
    }
}
