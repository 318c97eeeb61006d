//! The end of a history: after the last fault the system recovers within the deadline, and stays
//! so.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_core::jobset::completed;
use lockstep_core::restart::{self, Durable, DurablePhase, GroupPhase};
use lockstep_pod_agent::machine::Heartbeat;

use super::latest;
use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::Event;
use crate::world::kubernetes::controllers::{self, has_condition};
use crate::world::kubernetes::gangs::stage_and_index;
use crate::world::node::container::{Container, Identity};
use crate::world::replica::group::durable_of;

/// The system must recover within this time after the last fault. It includes the back-off of the
/// Job controller and of the kubelet.
const DEADLINE: Time = 1800 * SEC;
/// The deadline if Jobs have a time limit: each of up to 20 restarts lasts until the limit and the
/// grace period of the pods are over.
const LIMITED_DEADLINE: Time = 2 * DEADLINE;
/// Time between two checks.
const CHECK_EVERY: Time = 5 * SEC;
/// How long faults may last after the last one has begun.
const LONGEST_FAULT: Time = 60 * SEC;
/// How much longer than `inplace-timeout` a group may take to stop or to be released, for work in
/// progress.
const SLACK: Time = 2 * SEC;
/// The number of checks in a row that must find the system healthy and idle.
const CALM_CHECKS: u32 = 4;

impl World {
    /// Checks how long a group has been in this phase. It may not stop, or be released, for longer
    /// than `inplace-timeout`, once leader and API server are healthy.
    fn check_deadline(&mut self, phase: GroupPhase, since: Time) {
        let longest = self.truth.longest_timeout + SLACK;
        let well = self.truth.quiet_since.unwrap_or(self.now) + LONGEST_FAULT;
        let since = since.max(well);
        if matches!(phase, GroupPhase::Stopping | GroupPhase::Releasing) && self.now > since + longest {
            let seconds = (self.now - since) / SEC;
            self.violate(format!("the group is {phase} for {seconds} s"));
        }
    }

    /// Checks the recovery after the last fault, and schedules the next check.
    pub(crate) fn check(&mut self) {
        let phases: Vec<(GroupPhase, Time)> = self
            .replicas
            .iter()
            .filter_map(|replica| replica.leader.as_ref()?.group.as_ref())
            .filter_map(|group| Some((group.phase.0?, group.phase.1)))
            .collect();
        for (phase, entered) in phases {
            self.check_deadline(phase, entered);
        }
        let well = self.truth.quiet_since.unwrap_or(self.now) + LONGEST_FAULT;
        let longest = self.truth.longest_timeout + SLACK;
        self.check_down(well, longest);
        self.check_restored(well);
        self.check_standbys();
        let since = *self.truth.quiet_since.get_or_insert(self.now);
        let seen = (self.truth.requests.all, self.truth.started);
        match self.is_healthy() {
            Ok(()) => {
                let quiet = seen == self.truth.at_last_check;
                self.truth.calm = if quiet { self.truth.calm + 1 } else { 0 };
                if self.truth.calm >= CALM_CHECKS {
                    self.finished = true;
                    return;
                }
            }
            Err(why) => {
                self.truth.calm = 0;
                let deadline = if self.scenario.time_limited {
                    LIMITED_DEADLINE
                } else {
                    DEADLINE
                };
                if self.now > since + deadline {
                    self.violate(format!("still not healthy: {why}"));
                    return;
                }
            }
        }
        self.truth.at_last_check = seen;
        let at = self.now + CHECK_EVERY;
        self.queue.push(at, Event::Check);
    }

    /// True if this worker runs in a container that lacks its agent.
    fn runs_without_agent(&self, identity: &Identity) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|(id, container)| {
            container.identity == *identity && container.runs_undisturbed() && self.is_without_agent(id)
        })
    }

    /// True if this container, which lacks its agent, came after one that ran like all others: then
    /// a worker has failed. Later generations are forgotten with the agent; all that remains is
    /// that the status names the worker as not reported.
    fn is_unnoticed(&self, container: &Container, durable: &Durable) -> bool {
        let stage = stage_and_index(&container.identity.0).0;
        let mut others = self.containers.values();
        latest(durable) == 0
            && durable.started.contains(stage)
            && others.any(|other| other.pod == container.pod && other.started == Some(0))
    }

    /// Notes that a container without its agent has failed. Nothing waits for one that may come
    /// late and has not joined.
    pub(crate) fn note_failure_beside(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let daemon = &self.nodes[container.node].daemon;
        if let Some(generation) = daemon.lets_run(id)
            && self.has_joined(&container.identity)
        {
            let life = (container.node, daemon.life);
            self.truth.beside.insert(id.to_owned(), (generation, life));
        }
    }

    /// A worker that failed at this generation without its agent, while its peers run on. The
    /// daemon that saw the failure still runs.
    fn failed_beside(&self, generation: u64) -> Option<&Identity> {
        let mut failed = self.truth.beside.iter();
        failed.find_map(|(id, (at, (node, life)))| {
            let container = self.containers.get(id)?;
            let identity = &container.identity;
            let is_wanted = self.api.jobs.get(&identity.0).is_some_and(|job| {
                !controllers::completed(job).contains(&identity.1)
                    && !has_condition(job, "Failed")
                    && !has_condition(job, "Complete")
            });
            let pod_lives = self
                .api
                .pods
                .get(&container.pod)
                .is_some_and(|pod| !pod.is_terminal());
            let counts = *at == generation
                && is_wanted
                && pod_lives
                && self.daemon_lives(*node, *life)
                && !self.has_worker_restart(identity);
            counts.then_some(identity)
        })
    }

    fn live_processes(&self) -> usize {
        self.containers
            .values()
            .map(|container| {
                let waiting = usize::from(container.standby.is_some()) + container.ranks.waiting.len();
                container.processes.len() + waiting
            })
            .sum()
    }

    /// Returns an error if anything is not as it should be in the end.
    fn is_healthy(&self) -> Result<(), String> {
        let Some(jobset) = &self.api.jobset else {
            return if self.live_processes() == 0 {
                Ok(())
            } else {
                Err("processes of a deleted JobSet are left".to_owned())
            };
        };
        if jobset.is_deleting() {
            return Err("the JobSet is being deleted".to_owned());
        }
        if jobset.is_finished() || jobset.is_suspended() {
            return if self.live_processes() == 0 {
                Ok(())
            } else {
                Err("processes of a JobSet that has ended are left".to_owned())
            };
        }
        let is_limited = |job: &Job| {
            let spec = job.spec.as_ref();
            spec.is_some_and(|spec| spec.active_deadline_seconds.is_some()) && !has_condition(job, "Complete")
        };
        if self.scenario.time_limited && self.api.jobs.values().any(|job| is_limited(job)) {
            return Err("the time of a Job is not over yet".to_owned());
        }
        let durable = durable_of(jobset);
        self.check_status_healthy(&durable)?;
        self.check_jobs_healthy(jobset)?;
        if let Some((job, index)) = self.failed_beside(durable.generation.0) {
            return Err(format!("{job}[{index}] has failed, and its peers run on"));
        }
        self.check_ranks_healthy()?;
        self.check_workers_healthy(&durable)
    }

    /// The status and a leader agree that all workers run.
    fn check_status_healthy(&self, durable: &Durable) -> Result<(), String> {
        // No part can tell whether a worker without its agent runs.
        let mut identities = self.containers.values().map(|container| &container.identity);
        let is_unknown = identities.any(|identity| self.runs_without_agent(identity));
        if durable.phase != DurablePhase::InSync && !(is_unknown && durable.phase == DurablePhase::Recreating)
        {
            return Err(format!("the status says {:?}", durable.phase));
        }
        // Nothing waits for a worker that may never find room again.
        let place = |identity: &restart::Identity| (identity.job.to_string(), identity.index);
        if durable
            .worker_restarts
            .keys()
            .any(|identity| !self.lacks_room(&place(identity)) && !self.runs_without_agent(&place(identity)))
        {
            return Err(format!(
                "the status still has the worker restarts {:?}",
                durable.worker_restarts
            ));
        }
        let idle = self
            .replicas
            .iter()
            .filter_map(|replica| replica.leader.as_ref()?.group.as_ref());
        if !idle
            .into_iter()
            .any(|group| group.coordinator.phase() == GroupPhase::InSync && group.is_idle())
        {
            return Err("no leader finds the group in sync".to_owned());
        }
        Ok(())
    }

    /// All Jobs exist.
    fn check_jobs_healthy(&self, jobset: &JobSet) -> Result<(), String> {
        // Jobs that have completed and were deleted are not recreated.
        let jobs = completed::with_gone(jobset, self.api.jobs.values().cloned().collect());
        let there: BTreeSet<&str> = jobs
            .iter()
            .filter_map(|job| job.metadata.name.as_deref())
            .collect();
        for replicated_job in &jobset.spec.replicated_jobs {
            let created = (0..i64::from(replicated_job.replicas()))
                .map(|index| jobset.job_name(&replicated_job.name, index))
                .filter(|name| there.contains(name.as_str()))
                .count();
            if i64::try_from(created) != Ok(i64::from(replicated_job.replicas())) {
                return Err(format!("Jobs of {} are missing", replicated_job.name));
            }
        }
        Ok(())
    }

    /// Each worker that has not completed runs once, at the durable generation.
    fn check_workers_healthy(&self, durable: &Durable) -> Result<(), String> {
        for (name, job) in &self.api.jobs {
            let width = controllers::width(job);
            let done = controllers::completed(job);
            for index in (0..width).filter(|index| !done.contains(index)) {
                let identity = (name.clone(), index);
                let runs = self
                    .containers
                    .iter()
                    .filter(|(_, container)| container.identity == identity && container.runs_undisturbed())
                    .filter(|(id, container)| {
                        if self.is_without_agent(id) {
                            return !self.is_unnoticed(container, durable);
                        }
                        let generation = match container.plain {
                            Some(_) => container.started.unwrap_or(u64::MAX),
                            None => container.machine.status().generation.0,
                        };
                        let of_all = generation == durable.generation.0;
                        // A node that lies can give its own workers a generation of their own.
                        let by_itself = (self.has_worker_restart(&identity) || self.scenario.liars)
                            && (durable.generation.0..=latest(durable)).contains(&generation);
                        of_all || by_itself
                    })
                    .count();
                let waits = |container: &Container| {
                    container.identity == identity
                        && container.runs_undisturbed()
                        && matches!(
                            container.machine.status().heartbeat,
                            Heartbeat::Awaited | Heartbeat::Overdue
                        )
                };
                if self.scenario.ready_timeout().is_some() && self.containers.values().any(waits) {
                    return Err(format!("{name}[{index}] is not up"));
                }
                if runs == 0 && self.lacks_room(&identity) {
                    continue;
                }
                if runs != 1 {
                    return Err(format!(
                        "{runs} processes of {name}[{index}] run at generation {}",
                        durable.generation
                    ));
                }
            }
        }
        Ok(())
    }
}
