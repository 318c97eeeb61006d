//! What must hold, checked as it happens (docs/restart-protocol.md, "Invariants").
//!
//! The simulation knows the truth: which process runs where, and everything that was ever done to it. Each disruption is noted with the
//! generations that it may explain a restart of; whatever is started again without one is a violation.

use std::collections::{BTreeMap, BTreeSet};

mod containers;

use lockstep_api::{JobSet, Target, annotations::RestartScope};
use lockstep_core::restart::{self, Announcement, Durable, DurablePhase, Reason, Scope};
use lockstep_pod_agent::target::{Exit, Heartbeat, Phase, Status};

use crate::agent::{Container, Identity};
use crate::controllers::completed;
use crate::event::Event;
use crate::group::durable_of;
use crate::scenario::Profile;
use crate::time::{SEC, Time};
use crate::worker::Process;
use crate::world::World;

/// After the last fault, so long until everything must be well: back-off of the Job controller and of kubelet included.
const DEADLINE: Time = 1800 * SEC;
/// Time between two looks at whether all is well.
const CHECK_EVERY: Time = 5 * SEC;
/// How long a fault may last after the last one has begun.
const LONGEST_FAULT: Time = 60 * SEC;
/// How much longer than `inplace-timeout` a group may stop or be released, for what is under way then.
const SLACK: Time = 2 * SEC;
/// So many looks in a row must find it well, and nothing done meanwhile.
const CALM_CHECKS: u32 = 4;

/// Something that explains restarts of the generations from `lo` to `hi`.
#[derive(Debug, Clone)]
struct Cause {
    lo: u64,
    hi: u64,
    /// Whether a counted restart may come of it.
    counts: bool,
    /// The worker that it concerns and nobody else; none: all.
    only: Option<Identity>,
}

/// What the simulation knows and the system under test does not.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    causes: Vec<Cause>,
    /// The last generation that each worker was started with.
    starts: BTreeMap<Identity, u64>,
    /// The last container of each worker without an agent.
    begun: BTreeMap<Identity, String>,
    /// The last one of each that was stopped, for which generation, and in which life of which node: what was written down outlives no other.
    stopped: BTreeMap<Identity, (u64, String, (usize, u32))>,
    /// Workers that ran together with all others, at this generation, when they last ended.
    together: BTreeMap<Identity, u64>,
    /// Pods of workers that were let go.
    let_go: BTreeSet<String>,
    /// Containers that were stopped for restarts.
    pub(crate) stops: u32,
    /// When each worker last ended.
    ended: BTreeMap<Identity, Time>,
    /// The highest generation that anybody has wished for.
    highest: u64,
    /// The generations of restarts of the whole group that were ever durable.
    of_all: BTreeSet<u64>,
    /// Whom somebody wanted restarted alone.
    pub(crate) asked: Vec<Target>,
    max_restarts: u32,
    longest_timeout: Time,
    pub(crate) group_writes: u32,
    pub(crate) restarts: u32,
    /// Those of them that concerned one worker alone.
    pub(crate) alone: u32,
    /// Those of these that somebody has asked for.
    pub(crate) requested: u32,
    stages: u32,
    calm: u32,
    /// Group writes and starts at the last look.
    at_last_check: (u32, u64),
    started: u64,
    pub(crate) quiet_since: Option<Time>,
}

impl World {
    pub(crate) fn violate(&mut self, what: String) {
        self.say(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn note_limits(&mut self, jobset: &JobSet) {
        let max = u32::try_from(jobset.max_restarts()).unwrap_or(0);
        self.truth.max_restarts = self.truth.max_restarts.max(max);
        let timeout = jobset.in_place_timeout().unwrap_or_default();
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.truth.longest_timeout = self.truth.longest_timeout.max(timeout);
        self.truth.stages = u32::try_from(jobset.spec.replicated_jobs.len()).unwrap_or(0);
    }

    /// A group stops, or is released, since then. That may not take longer than `inplace-timeout`, once leader and API server are well.
    fn check_deadline(&mut self, state: &str, since: Time) {
        let longest = self.truth.longest_timeout + SLACK;
        let well = self.truth.quiet_since.unwrap_or(self.now) + LONGEST_FAULT;
        let since = since.max(well);
        if matches!(state, "Stopping" | "Releasing") && self.now > since + longest {
            let seconds = (self.now - since) / SEC;
            self.violate(format!("the group is {state} for {seconds} s"));
        }
    }

    pub(crate) fn note_generation(&mut self, generation: u64) {
        self.truth.highest = self.truth.highest.max(generation);
    }

    fn note(&mut self, lo: u64, hi: u64, counts: bool) {
        let only = None;
        self.truth.causes.push(Cause { lo, hi, counts, only });
    }

    /// The same of one worker, which concerns nobody else where it is restarted alone.
    fn note_of(&mut self, worker: &Identity, lo: u64, hi: u64) {
        let only = self.is_restarted_alone(worker).then(|| worker.clone());
        self.truth.causes.push(Cause {
            lo,
            hi,
            counts: true,
            only,
        });
    }

    fn is_restarted_alone(&self, worker: &Identity) -> bool {
        let jobset = &self.scenario.jobset;
        // Without an agent nobody is.
        if self.scenario.plain {
            return false;
        }
        let stage = worker.0.split('-').nth(1).unwrap_or_default();
        jobset
            .replicated_job(stage)
            .is_some_and(|job| job.restart_scope() == Ok(RestartScope::Worker))
    }

    /// Something that may explain a restart of any generation that anybody knows of.
    pub(crate) fn note_any(&mut self, counts: bool) {
        let highest = self.truth.highest;
        self.note(0, highest, counts);
    }

    /// A request, or a suspension: it may be acted upon later.
    pub(crate) fn note_wish(&mut self) {
        let highest = self.truth.highest;
        self.note(0, highest + 3, false);
    }

    /// A worker that was let go is wanted again before all have forgotten it.
    pub(crate) fn note_return(&mut self) {
        let highest = self.truth.highest;
        self.note(0, highest + 3, true);
    }

    pub(crate) fn note_job_failure(&mut self) {
        self.note_any(true);
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
        let generation = if container.plain.is_some() {
            self.record_of(id).map(|record| record.generation)
        } else {
            (status.phase != Phase::Fresh).then_some(status.generation)
        };
        match generation {
            Some(generation) => self.note_of(&worker, generation, generation),
            None => {
                let highest = self.truth.highest;
                self.note_of(&worker, 0, highest);
            }
        }
    }

    /// Kubelet ends a container because its pod is to go.
    pub(crate) fn note_end_of_pod(&mut self, id: &str) {
        let container = self.containers.get(id);
        let worker = container.map(|container| (container.identity.clone(), container.pod.clone()));
        if worker.is_some_and(|(worker, pod)| !self.lets_go(&worker, &pod)) {
            self.note_loss(id);
        }
    }

    /// What a worker did before is forgotten.
    pub(crate) fn forget_worker(&mut self, worker: &Identity, pod: &str) {
        self.truth.let_go.insert(pod.to_owned());
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
                Some(worker) => self.note_of(&worker, 0, highest),
                None => self.note_any(true),
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
                self.truth.alone += u32::from(*scope == Scope::Worker);
                if cause.reason == Reason::ManualRequest && *scope == Scope::Worker {
                    self.note_asked(cause, generation.0);
                }
            }
            Announcement::Recreating { generation, cause } if cause.reason == Reason::TimedOut => {
                self.note(
                    generation.0.saturating_sub(1),
                    generation.0.saturating_sub(1),
                    false,
                );
            }
            _ => {}
        }
    }

    /// A worker is restarted alone because somebody wants that: it has to be one that was named, and it explains nothing but that.
    fn note_asked(&mut self, cause: &restart::Cause, generation: u64) {
        let Some(worker) = &cause.identity else {
            return self.violate("nobody is restarted alone".to_owned());
        };
        let stage = worker.job.split('-').nth(1).unwrap_or_default();
        let takes = |target: &Target| target.takes(stage, &worker.job, worker.index, &worker.container);
        if !self.truth.asked.iter().any(takes) {
            return self.violate(format!(
                "{worker} is restarted alone, and nobody has asked for that"
            ));
        }
        self.truth.requested += 1;
        self.truth.causes.push(Cause {
            lo: 0,
            hi: generation.saturating_sub(1),
            counts: false,
            only: Some((worker.job.clone(), worker.index)),
        });
    }

    /// An agent has taken in a fact: what it knows never falls, and what ends by itself is a failure.
    pub(crate) fn agent_checked(&mut self, id: &str, before: &Status) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (after, identity) = (container.machine.status().clone(), container.identity.clone());
        if after.generation < before.generation || after.epoch < before.epoch {
            self.violate(format!("{id}: the agent goes back from {before:?} to {after:?}"));
        }
        if after.heartbeat.is_late() && !before.heartbeat.is_late() {
            self.say(|| format!("{id}: {:?} at {}", after.heartbeat, after.generation));
            self.note_of(&identity, after.generation, after.generation);
        }
        if after.phase != before.phase {
            self.say(|| format!("{id}: {:?} at {}", after.phase, after.generation));
            let failed = matches!(after.phase, Phase::Exited(exit) if exit != Exit::Code(0));
            if failed {
                self.note_of(&identity, after.generation, after.generation);
            }
        }
    }

    /// A worker is about to be started.
    pub(crate) fn check_start(&mut self, id: &str, generation: u64) {
        self.truth.started += 1;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (identity, uid, recreation) = (
            container.identity.clone(),
            container.jobset_uid.clone(),
            container.recreation,
        );
        if !container.processes.is_empty() {
            return self.violate(format!(
                "{id} starts its worker while processes of the one before remain"
            ));
        }
        if container.started.is_some_and(|before| before >= generation) {
            return self.violate(format!("{id} starts generation {generation} twice"));
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.started = Some(generation);
        }
        for (other_id, other) in &self.containers {
            if other_id == id || other.jobset_uid != uid || other.processes.is_empty() {
                continue;
            }
            let pod = self.api.pods.get(&other.pod);
            let counts = pod.is_some_and(|pod| !pod.is_terminal());
            if counts && other.identity == identity {
                let what = format!("{id} starts {identity:?} while {other_id} still has processes of it");
                return self.violate(what);
            }
            // No restart of all may lie between two generations that run at once.
            let apart = |process: &&Process| {
                let (lower, higher) = (
                    process.generation.min(generation),
                    process.generation.max(generation),
                );
                self.truth
                    .of_all
                    .iter()
                    .any(|of_all| lower < *of_all && *of_all <= higher)
            };
            // Who was let go is on its way out, and nobody waits for that.
            let counts = counts && self.is_wanted(&other.identity) && !self.truth.let_go.contains(&other.pod);
            if counts && let Some(process) = other.processes.values().find(apart) {
                let what = format!(
                    "{id} starts at generation {generation} while {other_id} has a process of generation {}",
                    process.generation
                );
                return self.violate(what);
            }
        }
        if let Some(jobset) = self.api.jobset.clone().filter(|jobset| jobset.uid_str() == uid) {
            let durable = durable_of(&jobset);
            let latest = latest(&durable);
            if latest < generation {
                let what = format!("{id} starts at generation {generation}, durable is {latest}");
                return self.violate(what);
            }
        }
        let of_all = generation == 0 || self.truth.of_all.contains(&generation);
        if !of_all && !self.is_restarted_alone(&identity) {
            return self.violate(format!(
                "{identity:?} starts at generation {generation}, which is not one of the whole group"
            ));
        }
        if let Some(job) = self.api.jobs.get(&identity.0)
            && completed(job).contains(&identity.1)
            && recreation == self.api.jobset.as_ref().map_or(0, |jobset| jobset.restarts())
        {
            return self.violate(format!("{id} runs completed work of {identity:?} again"));
        }
        let Some(before) = self.truth.starts.insert(identity.clone(), generation) else {
            return;
        };
        if let Some(peer) = self.left_behind(&identity, &uid, (before, generation)) {
            return self.violate(format!(
                "{identity:?} ran at generation {before} and is started at {generation}, while {peer:?} runs on since before its end"
            ));
        }
        if self.scenario.profile == Profile::Calm {
            return self.violate(format!(
                "{identity:?} is started again although no worker has failed"
            ));
        }
        let upto = before.max(generation.saturating_sub(1));
        let base = self.truth.of_all.range(..=before).next_back();
        let base = base.copied().unwrap_or(0);
        let explained = self.truth.causes.iter().any(|cause| {
            let concerns = cause.only.as_ref().is_none_or(|only| *only == identity);
            // The group may be at a lower one, where this worker was restarted alone since.
            let since = if cause.only.is_none() { base } else { before };
            concerns && cause.lo <= upto && cause.hi >= since
        });
        if !explained {
            self.violate(format!(
                "{identity:?} ran at generation {before} and is started at {generation}, but nothing has happened at {before} to {upto}"
            ));
        }
    }

    /// A worker that ran together with an earlier incarnation of this one, and is not restarted with it. Until all of a stage have started a new
    /// leader cannot know who has.
    fn left_behind(
        &self,
        identity: &Identity,
        uid: &str,
        (before, generation): (u64, u64),
    ) -> Option<Identity> {
        let ended = self.truth.ended.get(identity)?;
        let jobset = self.api.jobset.as_ref()?;
        let started = durable_of(jobset).started;
        let stage = |identity: &Identity| identity.0.split('-').nth(1).unwrap_or_default().to_owned();
        if before < generation || !started.contains(&stage(identity)) || !self.has_joined(identity) {
            return None;
        }
        let mut peers = self.containers.values().filter(|other| {
            let runs = |process: &Process| process.generation == generation && process.since < *ended;
            other.jobset_uid == uid
                && started.contains(&stage(&other.identity))
                && other.processes.values().any(runs)
        });
        peers.next().map(|other| other.identity.clone())
    }

    /// A worker has ended, or what it lived in.
    pub(crate) fn note_end(&mut self, id: &str) {
        if let Some(container) = self
            .containers
            .get(id)
            .filter(|container| container.worker.is_some())
        {
            let identity = container.identity.clone();
            self.truth.ended.insert(identity, self.now);
            self.note_together(id);
        }
    }

    /// Somebody has written the status.
    pub(crate) fn check_status(&mut self, before: Option<&JobSet>, after: &JobSet, by_group: bool) {
        let (now, then) = (durable_of(after), before.map(durable_of).unwrap_or_default());
        self.truth.group_writes += u32::from(by_group);
        self.note_generation(latest(&now));
        self.truth.of_all.insert(now.generation.0);
        if now.generation < then.generation || latest(&now) < latest(&then) || now.counter < then.counter {
            self.violate(format!("the status goes back from {then:?} to {now:?}"));
        }
        if now.counter > then.counter && now.counter > self.truth.max_restarts {
            let max = self.truth.max_restarts;
            self.violate(format!("{} restarts are counted, {max} are allowed", now.counter));
        }
        // Failures of one generation are one, but for workers that are restarted alone.
        let exact: BTreeSet<(u64, Option<&Identity>)> = self
            .truth
            .causes
            .iter()
            .filter(|cause| cause.counts && cause.lo == cause.hi)
            .map(|cause| (cause.lo, cause.only.as_ref()))
            .collect();
        let others = self
            .truth
            .causes
            .iter()
            .filter(|cause| cause.counts && cause.lo != cause.hi)
            .count();
        if now.counter as usize > exact.len() + others {
            self.violate(format!(
                "{} restarts are counted, but workers have failed in {} generations only",
                now.counter,
                exact.len() + others
            ));
        }
        if self.scenario.profile == Profile::Clean
            && self.truth.group_writes > self.truth.stages + 2 * self.truth.restarts
        {
            let (writes, restarts, stages) =
                (self.truth.group_writes, self.truth.restarts, self.truth.stages);
            self.violate(format!(
                "{writes} writes for {restarts} restarts of {stages} replicatedJobs"
            ));
        }
        if self.scenario.profile == Profile::Clean && now.phase == DurablePhase::Recreating {
            self.violate("Jobs are made anew although every worker could be restarted in place".to_owned());
        }
        if self.scenario.profile == Profile::Calm && (now.generation.0 > 0 || now.counter > 0) {
            self.violate(format!(
                "the group is at generation {} although nothing has failed",
                now.generation
            ));
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
        let since = *self.truth.quiet_since.get_or_insert(self.now);
        let seen = (self.truth.group_writes, self.truth.started);
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
                if self.now > since + DEADLINE {
                    self.violate(format!("still not well: {why}"));
                    return;
                }
            }
        }
        self.truth.at_last_check = seen;
        let at = self.now + CHECK_EVERY;
        self.queue.push(at, Event::Check);
    }

    fn live_processes(&self) -> usize {
        self.containers
            .values()
            .map(|container| container.processes.len())
            .sum()
    }

    /// Whether everything is as it should be in the end.
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
        let durable = durable_of(jobset);
        if durable.phase != DurablePhase::InSync {
            return Err(format!("the status says {:?}", durable.phase));
        }
        if !durable.alone.is_empty() {
            return Err(format!(
                "the status says that {:?} are restarted alone",
                durable.alone
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
        for replicated_job in &jobset.spec.replicated_jobs {
            let created = (0..i64::from(replicated_job.replicas()))
                .map(|index| jobset.job_name(&replicated_job.name, index))
                .filter(|name| self.api.jobs.contains_key(name))
                .count();
            if i64::try_from(created) != Ok(i64::from(replicated_job.replicas())) {
                return Err(format!("Jobs of {} are missing", replicated_job.name));
            }
        }
        for (name, job) in &self.api.jobs {
            let width = crate::controllers::width(job);
            let done = completed(job);
            for index in (0..width).filter(|index| !done.contains(index)) {
                let identity = (name.clone(), index);
                let runs = self
                    .containers
                    .values()
                    .filter(|container| container.identity == identity && container.runs_undisturbed())
                    .filter(|container| {
                        let generation = match container.plain {
                            Some(_) => container.started.unwrap_or(u64::MAX),
                            None => container.machine.status().generation,
                        };
                        let of_all = generation == durable.generation.0;
                        let alone = self.is_restarted_alone(&identity)
                            && (durable.generation.0..=latest(&durable)).contains(&generation);
                        of_all || alone
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

/// The highest generation that was given, as far as it is durable.
fn latest(durable: &Durable) -> u64 {
    durable.generation.max(durable.latest).0
}
