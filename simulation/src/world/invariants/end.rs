//! How it has to end: after the last fault all becomes well within the deadline, and stays so.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_core::jobset::completed;
use lockstep_core::restart::{self, Durable, DurablePhase};
use lockstep_pod_agent::target::Heartbeat;

use super::latest;
use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::Event;
use crate::world::kubernetes::controllers::{self, has_condition};
use crate::world::kubernetes::gangs::stage_and_index;
use crate::world::node::container::{Container, Identity};
use crate::world::replica::group::durable_of;

/// How long after the last fault everything must be well. It includes back-off of the Job
/// controller and of the kubelet.
const DEADLINE: Time = 1800 * SEC;
/// The same if Jobs have a time limit: each of up to 20 restarts lasts until the limit and the
/// grace of the pods are over.
const LIMITED_DEADLINE: Time = 2 * DEADLINE;
/// Time between two looks at whether all is well.
const CHECK_EVERY: Time = 5 * SEC;
/// How long a fault may last after the last one has begun.
const LONGEST_FAULT: Time = 60 * SEC;
/// How much longer than `inplace-timeout` a group may stop or be released, for what is under way
/// then.
const SLACK: Time = 2 * SEC;
/// Looks in a row that must find it well, with nothing done meanwhile.
const CALM_CHECKS: u32 = 4;

impl World {
    /// A group stops, or is released, since then. That may not take longer than `inplace-timeout`,
    /// once leader and API server are well.
    fn check_deadline(&mut self, state: &str, since: Time) {
        let longest = self.truth.longest_timeout + SLACK;
        let well = self.truth.quiet_since.unwrap_or(self.now) + LONGEST_FAULT;
        let since = since.max(well);
        if matches!(state, "Stopping" | "Releasing") && self.now > since + longest {
            let seconds = (self.now - since) / SEC;
            self.violate(format!("the group is {state} for {seconds} s"));
        }
    }

    /// No more faults: it has to become well, and stay so.
    pub(crate) fn check(&mut self) {
        let states: Vec<(&str, Time)> = self
            .replicas
            .iter()
            .filter_map(|replica| replica.leader.as_ref()?.group.as_ref())
            .map(|group| group.state)
            .collect();
        for (state, entered) in states {
            self.check_deadline(state, entered);
        }
        let well = self.truth.quiet_since.unwrap_or(self.now) + LONGEST_FAULT;
        let longest = self.truth.longest_timeout + SLACK;
        self.check_down(well, longest);
        self.check_restored(well);
        let since = *self.truth.quiet_since.get_or_insert(self.now);
        let seen = (self.truth.prices.all, self.truth.started);
        match self.is_well() {
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
                    self.violate(format!("still not well: {why}"));
                    return;
                }
            }
        }
        self.truth.at_last_check = seen;
        let at = self.now + CHECK_EVERY;
        self.queue.push(at, Event::Check);
    }

    /// True if this worker runs in a container that has no agent, and is named for that.
    fn runs_without_agent(&self, identity: &Identity) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|(id, container)| {
            container.identity == *identity && container.runs_undisturbed() && self.is_without_agent(id)
        })
    }

    /// True if this container, which has no agent, came after one that ran like all others: then a
    /// worker has failed. Later generations are forgotten with the agent; what remains is that its
    /// worker is named as not reported.
    fn is_unnoticed(&self, container: &Container, durable: &Durable) -> bool {
        let stage = stage_and_index(&container.identity.0).0;
        let mut others = self.containers.values();
        latest(durable) == 0
            && durable.started.contains(stage)
            && others.any(|other| other.pod == container.pod && other.started == Some(0))
    }

    /// A container without its agent fails. Nobody waits for one that may come late and has not
    /// joined.
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

    /// A worker that failed at this generation without its agent, before the eyes of a daemon that
    /// still runs, and whose peers run on.
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
            .map(|container| container.processes.len())
            .sum()
    }

    /// Ok if everything is as it should be in the end.
    fn is_well(&self) -> Result<(), String> {
        let Some(jobset) = &self.api.jobset else {
            return if self.live_processes() == 0 {
                Ok(())
            } else {
                Err("processes of a JobSet that is gone".to_owned())
            };
        };
        if jobset.is_deleting() {
            return Err("the JobSet is being deleted".to_owned());
        }
        if jobset.is_finished() || jobset.is_suspended() {
            return if self.live_processes() == 0 {
                Ok(())
            } else {
                Err("processes of a JobSet that has ended".to_owned())
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
        self.status_is_well(&durable)?;
        self.jobs_are_well(jobset)?;
        if let Some((job, index)) = self.failed_beside(durable.generation.0) {
            return Err(format!("{job}[{index}] has failed, and its peers run on"));
        }
        self.workers_are_well(&durable)
    }

    /// The status says that all run, and so does a leader.
    fn status_is_well(&self, durable: &Durable) -> Result<(), String> {
        // Nobody can tell whether one without its agent runs.
        let mut identities = self.containers.values().map(|container| &container.identity);
        let untold = identities.any(|identity| self.runs_without_agent(identity));
        if durable.phase != DurablePhase::InSync && !(untold && durable.phase == DurablePhase::Recreating) {
            return Err(format!("the status says {:?}", durable.phase));
        }
        // Nothing waits for one that may never find room again.
        let place = |identity: &restart::Identity| (identity.job.to_string(), identity.index);
        if durable
            .worker_restarts
            .keys()
            .any(|identity| !self.lacks_room(&place(identity)) && !self.runs_without_agent(&place(identity)))
        {
            return Err(format!(
                "the status says that {:?} are restarted alone",
                durable.worker_restarts
            ));
        }
        let idle = self
            .replicas
            .iter()
            .filter_map(|replica| replica.leader.as_ref()?.group.as_ref());
        if !idle
            .into_iter()
            .any(|group| group.coordinator.state_name() == "InSync" && group.is_idle())
        {
            return Err("no leader finds the group in sync".to_owned());
        }
        Ok(())
    }

    /// All Jobs are there.
    fn jobs_are_well(&self, jobset: &JobSet) -> Result<(), String> {
        // Those that have completed and are gone are not recreated.
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
    fn workers_are_well(&self, durable: &Durable) -> Result<(), String> {
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
                        let by_itself = self.has_worker_restart(&identity)
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
