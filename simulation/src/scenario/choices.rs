//! Further choices of a scenario. Each has random numbers of its own, so that it leaves the others
//! as they are.

use lockstep_api::{ReplicatedJob, annotations};

use super::{Leftovers, Profile, Scenario};
use crate::rng::Rng;
use crate::time::SEC;

/// Number of workers per node in a large group.
const OF_NODE: usize = 100;

impl Scenario {
    /// In a third of the scenarios at least one replicatedJob has worker restarts. Nothing else is
    /// drawn from `rng`.
    pub(crate) fn choose_scopes(&mut self, rng: &mut Rng) {
        if !rng.percent(33) {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let first = rng.index(jobs.len());
        for (index, job) in jobs.iter_mut().enumerate() {
            if index == first || rng.percent(30) {
                restarts_workers(job);
            }
        }
    }

    /// In half of the scenarios with heartbeats workers must be up within a deadline, and some
    /// never are. `rng` as above.
    pub(crate) fn choose_deadline(&mut self, rng: &mut Rng) {
        let annotations = self.jobset.metadata.annotations.get_or_insert_default();
        let heartbeats = annotations.contains_key(annotations::HEARTBEAT_TIMEOUT);
        if !heartbeats || !rng.percent(50) {
            return;
        }
        let timeout = ["30s", "1m", "3m"][rng.index(3)];
        annotations.insert(annotations::READY_TIMEOUT.to_owned(), timeout.to_owned());
        if self.profile == Profile::Wild && rng.percent(50) {
            self.mute_percent = 10;
        }
    }

    /// In a sixth of the scenarios workers have no agents, and their containers are restarted.
    /// `rng` as above.
    pub(crate) fn choose_kind(&mut self, rng: &mut Rng) {
        if rng.below(6) > 0 {
            return;
        }
        self.plain = true;
        self.mute_percent = 0;
        let annotations = self.jobset.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::SUPERVISE.to_owned(), "none".to_owned());
        // Nothing takes heartbeats.
        annotations.remove(annotations::HEARTBEAT_TIMEOUT);
        annotations.remove(annotations::READY_TIMEOUT);
        if self.profile == Profile::Clean {
            // Longer than the kubelet ever waits, so that nothing has to be recreated.
            annotations.insert(annotations::IN_PLACE_TIMEOUT.to_owned(), "10m".to_owned());
        }
        for job in &mut self.jobset.spec.replicated_jobs {
            let Some(spec) = &mut job.template.spec else {
                continue;
            };
            spec.pod_failure_policy = None;
            if let Some(pod) = &mut spec.template.spec {
                pod.restart_policy = Some("OnFailure".to_owned());
            }
        }
    }

    /// In a quarter of the scenarios containers are created without their agents while the daemon
    /// is away. In some of these the daemons start last, and workers fail for a while. Few other
    /// faults happen then, since they could cause a restart too. `rng` as above.
    pub(crate) fn choose_plugin(&mut self, rng: &mut Rng) {
        self.plugin_required = self.plain || rng.below(4) > 0;
        if self.plugin_required || self.profile != Profile::Wild || !rng.percent(30) {
            return;
        }
        self.daemons_late = true;
        self.crash_percent = 40;
        let last = self.faults.0 + 5 * SEC;
        self.faults.1 = self.faults.1.min(last);
    }

    /// In a fifth of the scenarios some agents lie about epochs, which must have no effect. `rng`
    /// as above.
    pub(crate) fn choose_liars(&mut self, rng: &mut Rng) {
        self.liars = rng.percent(20);
    }

    /// In an eighth of the scenarios in which everything fails, except RayClusters and gangs, the
    /// Jobs of a replicatedJob have a time limit. `rng` as above.
    pub(crate) fn choose_time_limit(&mut self, rng: &mut Rng) {
        if rng.below(8) > 0 || self.profile != Profile::Wild || self.elastic || self.gang.is_some() {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let limited = rng.index(jobs.len());
        if let Some(spec) = &mut jobs[limited].template.spec {
            spec.active_deadline_seconds = i64::try_from(rng.span(15, 40)).ok();
            self.time_limited = true;
        }
    }

    /// In a fifth of the scenarios in which everything fails, one worker cannot be started again in
    /// its pod, and little else fails. RayClusters, gangs, Jobs with a time limit and workers
    /// without agents are left out. `rng` as above.
    pub(crate) fn choose_leftovers(&mut self, rng: &mut Rng) {
        let other =
            self.elastic || self.gang.is_some() || self.time_limited || self.plain || self.daemons_late;
        if rng.below(5) > 0 || self.profile != Profile::Wild || other {
            return;
        }
        let worker_restarts = rng.percent(50);
        self.leftovers = Some(if worker_restarts {
            Leftovers::WorkerRestart
        } else {
            Leftovers::AndLockstep
        });
        self.crash_percent = 0;
        self.mute_percent = 0;
        self.plugin_required = true;
        if worker_restarts {
            self.bad_requests = false;
            self.bad_streams = false;
            self.stubborn_percent = 0;
        }
        if let Some(policy) = &mut self.jobset.spec.failure_policy {
            policy.max_restarts = Some([1, 2, 4][rng.index(3)]);
        }
        for job in &mut self.jobset.spec.replicated_jobs {
            if let Some(spec) = &mut job.template.spec {
                spec.pod_failure_policy = None;
            }
        }
    }

    /// In a seventh of the scenarios the daemon of a node without any worker of the group lies,
    /// which must have no effect. `rng` as above.
    pub(crate) fn choose_stranger(&mut self, rng: &mut Rng) {
        self.stranger = rng.below(7) == 0;
    }

    /// In a sixth of the scenarios in which parts of Lockstep fail, the API server refuses requests
    /// at once while it is down, and another client writes as often as Lockstep. `rng` as above.
    pub(crate) fn choose_api(&mut self, rng: &mut Rng) {
        let may = self.profile != Profile::Clean && self.leftovers != Some(Leftovers::WorkerRestart);
        self.harsh_api = rng.below(6) == 0 && may;
    }

    /// In a third of the scenarios with agents, workers of at least one replicatedJob have
    /// standbys. `rng` as above.
    pub(crate) fn choose_standbys(&mut self, rng: &mut Rng) {
        if self.plain || rng.below(3) > 0 {
            return;
        }
        let jobs = &self.jobset.spec.replicated_jobs;
        let first = rng.index(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            if index == first || rng.percent(50) {
                self.standbys.insert(job.name.clone());
            }
        }
    }

    /// In a quarter of the scenarios with agents and without gangs, workers of at least one
    /// replicatedJob start up to three ranks through their agents. `rng` as above.
    pub(crate) fn choose_ranks(&mut self, rng: &mut Rng) {
        if self.plain || self.gang.is_some() || rng.below(4) > 0 {
            return;
        }
        let jobs = &self.jobset.spec.replicated_jobs;
        let first = rng.index(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            let number = [1, 2, 3][rng.index(3)];
            if index == first || rng.percent(50) {
                self.ranks.insert(job.name.clone(), number);
            }
        }
    }

    /// Gives the last replicatedJob this many workers.
    pub(crate) fn enlarge(&mut self, workers: u32) {
        let Some(job) = self.jobset.spec.replicated_jobs.last_mut() else {
            return;
        };
        let width = i32::try_from(workers).unwrap_or(i32::MAX) / job.replicas.unwrap_or(1).max(1);
        if let Some(spec) = &mut job.template.spec {
            spec.parallelism = Some(width);
            spec.completions = Some(width);
        }
        self.nodes = workers as usize / OF_NODE + 1;
        // Otherwise some of the workers would fail at each start.
        self.crash_percent = 0;
        self.faults.1 = self.faults.0 + 60 * SEC;
        self.pause = 20 * SEC;
    }
}

fn restarts_workers(job: &mut ReplicatedJob) {
    let metadata = job.template.metadata.get_or_insert_default();
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
}
