//! Causes of restarts: each disruption, with the generations and the workers that it concerns.

use lockstep_api::{Target, annotations::RestartScope};
use lockstep_core::restart::{self, Announcement, Reason, Scope};
use lockstep_pod_agent::machine::{Exit, Phase, Status};

use super::{Cause, latest};
use crate::world::World;
use crate::world::node::container::Identity;
use crate::world::replica::group::durable_of;

impl World {
    /// Notes a cause that concerns all workers, and counts.
    fn note(&mut self, lo: u64, hi: u64) {
        self.truth.causes.push(Cause {
            lo,
            hi,
            counts: true,
            only: None,
        });
    }

    /// Notes a cause that concerns all workers, and does not count.
    fn note_uncounted(&mut self, lo: u64, hi: u64) {
        self.truth.causes.push(Cause {
            lo,
            hi,
            counts: false,
            only: None,
        });
    }

    /// Notes a cause that is a failure of one worker, in this pod. It concerns no other worker if
    /// the restart scope is the worker.
    fn note_of(&mut self, worker: &Identity, pod: &str, lo: u64, hi: u64) {
        let only = self.has_worker_restart(worker).then(|| worker.clone());
        let counts = !self.truth.ended_by_job.contains(pod);
        self.truth.causes.push(Cause { lo, hi, counts, only });
    }

    pub(super) fn has_worker_restart(&self, worker: &Identity) -> bool {
        let jobset = &self.scenario.jobset;
        // Workers without an agent have no worker restarts.
        if self.scenario.plain || self.is_changed(&worker.0) {
            return false;
        }
        let stage = worker.0.split('-').nth(1).unwrap_or_default();
        jobset
            .replicated_job(stage)
            .is_some_and(|job| job.restart_scope() == Ok(RestartScope::Worker))
    }

    /// Notes something that may explain a restart of any generation so far.
    fn note_any(&mut self) {
        let highest = self.truth.highest;
        self.note(0, highest);
    }

    /// Notes lies of a daemon about its own workers. Each may cause any restart of their group.
    pub(crate) fn note_lies(&mut self, number: usize) {
        for _ in 0..number {
            self.note(0, u64::MAX);
        }
    }

    /// Notes a request or a suspension, which may take effect later.
    pub(crate) fn note_wish(&mut self) {
        let highest = self.truth.highest;
        self.note_uncounted(0, highest + 3);
    }

    /// Notes that dropped workers are wanted again before all parts have forgotten them. Those that
    /// restart without the others count one by one.
    pub(crate) fn note_return(&mut self, workers: &[Identity]) {
        let highest = self.truth.highest;
        let by_themselves = workers.iter().filter(|worker| self.has_worker_restart(worker));
        for _ in 0..by_themselves.count().max(1) {
            self.note(0, highest + 3);
        }
    }

    pub(crate) fn note_job_failure(&mut self) {
        self.note_any();
    }

    /// A container is about to go away, or its pod is.
    pub(crate) fn note_loss(&mut self, id: &str) {
        let Some(container) = self
            .containers
            .get(id)
            .filter(|container| container.exit.is_none())
        else {
            return;
        };
        let (status, worker) = (container.machine.status(), container.identity.clone());
        let pod = container.pod.clone();
        let generation = if container.plain.is_some() {
            let lets_run = self.nodes[container.node].daemon.lets_run(id);
            let record = self.record_of(id);
            record.map(|record| record.generation.0).or(lets_run)
        } else {
            (status.phase != Phase::Fresh).then_some(status.generation.0)
        };
        match generation {
            Some(generation) => self.note_of(&worker, &pod, generation, generation),
            None => {
                let highest = self.truth.highest;
                self.note_of(&worker, &pod, 0, highest);
            }
        }
    }

    /// The kubelet ends a container because its pod is being deleted.
    pub(crate) fn note_end_of_pod(&mut self, id: &str) {
        let container = self.containers.get(id);
        let worker = container.map(|container| (container.identity.clone(), container.pod.clone()));
        if worker.is_some_and(|(worker, pod)| !self.drops_unwanted(&worker, &pod)) {
            self.note_loss(id);
        }
    }

    /// Forgets what a worker did before.
    pub(crate) fn forget_worker(&mut self, worker: &Identity, pod: &str) {
        self.truth.dropped.insert(pod.to_owned());
        self.truth.starts.remove(worker);
        self.truth.ended.remove(worker);
    }

    /// A pod is about to go away.
    pub(crate) fn note_pod_loss(&mut self, uid: &str) {
        let of_pod: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.pod == uid && container.exit.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        if of_pod.is_empty() {
            let pod = self.api.pods.get(uid);
            let worker = pod.map(|pod| (pod.job.clone(), pod.index));
            let highest = self.truth.highest;
            match worker {
                Some(worker) => self.note_of(&worker, uid, 0, highest),
                None => self.note_any(),
            }
        }
        for id in of_pod {
            self.note_loss(&id);
        }
    }

    pub(crate) fn note_announcement(&mut self, announcement: &Announcement) {
        match announcement {
            Announcement::Restarting {
                scope,
                generation,
                cause,
            } => {
                self.truth.restarts += 1;
                self.truth.worker_restarts += u32::from(*scope == Scope::Worker);
                self.note_taken(generation.0);
                if cause.reason == Reason::ManualRequest && *scope == Scope::Worker {
                    self.note_requested(cause, generation.0);
                }
            }
            Announcement::Climbed { .. } => self.truth.climbs += 1,
            Announcement::Recreating { generation, cause } if self.is_late(cause.reason) => {
                self.truth.recreations += 1;
                self.note_taken(generation.0);
                let previous = generation.0.saturating_sub(1);
                self.note_uncounted(previous, previous);
            }
            Announcement::Recreating { generation, cause } => {
                self.note_taken(generation.0);
                let climbs = matches!(cause.reason, Reason::FailedInNewPod | Reason::LastResort);
                self.truth.climbs += u32::from(climbs);
                self.truth.recreations += 1;
                if cause.reason == Reason::StaysDown {
                    self.note_started_by_kubelet(generation.0.saturating_sub(1));
                }
            }
            _ => {}
        }
    }

    /// True if this reason lets a restart in place become a recreation because it takes too long.
    /// Only the Job controller replaces a lost pod too late.
    fn is_late(&self, reason: Reason) -> bool {
        match reason {
            Reason::TimedOut => true,
            Reason::ReplacementLate => !self.scenario.replaces_pods,
            _ => false,
        }
    }

    /// A leader takes this generation for a restart. If it is not durable, an earlier leader may
    /// have taken the same number for another restart, which nothing that the new leader knows of
    /// remembers. Containers that ran at that number ran before this restart.
    fn note_taken(&mut self, generation: u64) {
        let durable = self.api.jobset.as_ref().map(|jobset| latest(&durable_of(jobset)));
        if durable >= Some(generation) {
            return;
        }
        for start in self.truth.starts.values_mut() {
            *start = (*start).min(generation.saturating_sub(1));
        }
    }

    /// Notes that workers which the kubelet has started by itself during a restart are stopped if
    /// the restart becomes a recreation.
    fn note_started_by_kubelet(&mut self, generation: u64) {
        let changed = self.containers.values().map(|container| &container.identity);
        let changed: Vec<Identity> = changed
            .filter(|worker| self.is_changed(&worker.0))
            .cloned()
            .collect();
        let noted = changed.into_iter().map(|worker| Cause {
            lo: generation,
            hi: generation,
            counts: false,
            only: Some(worker),
        });
        self.truth.causes.extend(noted);
    }

    /// A worker restart was requested. It must be of a worker that the request named, and it
    /// explains nothing else.
    fn note_requested(&mut self, cause: &restart::Cause, generation: u64) {
        let Some(worker) = &cause.identity else {
            return self.violate("a worker restart names no worker".to_owned());
        };
        let stage = worker.job.split('-').nth(1).unwrap_or_default();
        let takes = |target: &Target| target.takes(stage, &worker.job, worker.index, &worker.container);
        if !self.truth.requested_targets.iter().any(takes) {
            return self.violate(format!(
                "{worker} is restarted by request, but no request named it"
            ));
        }
        self.truth.requested += 1;
        self.truth.causes.push(Cause {
            lo: 0,
            hi: generation.saturating_sub(1),
            counts: false,
            only: Some((worker.job.to_string(), worker.index)),
        });
    }

    /// An agent has processed an input. Its generation and epoch never fall, and a worker that ends
    /// by itself has failed.
    pub(crate) fn agent_checked(&mut self, id: &str, before: &Status) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (after, identity) = (container.machine.status().clone(), container.identity.clone());
        let (pod, container_begun) = (container.pod.clone(), container.begun);
        if after.generation < before.generation || after.epoch < before.epoch {
            self.violate(format!("{id}: the agent goes back from {before:?} to {after:?}"));
        }
        if after.heartbeat.is_late() && !before.heartbeat.is_late() {
            self.say(|| format!("{id}: {:?} at {}", after.heartbeat, after.generation));
            self.note_of(&identity, &pod, after.generation.0, after.generation.0);
        }
        if after.phase != before.phase {
            self.say(|| format!("{id}: {:?} at {}", after.phase, after.generation));
            let failed = matches!(after.phase, Phase::Exited(exit) if exit != Exit::Code(0));
            if failed && container_begun != Some(after.generation.0) {
                self.violate(format!(
                    "{id}: the worker counts as failed although it has not run"
                ));
            }
            if failed {
                self.note_of(&identity, &pod, after.generation.0, after.generation.0);
            }
        }
    }
}
