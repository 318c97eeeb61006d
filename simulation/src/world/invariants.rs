//! Invariants, checked at each event (docs/restart-protocol.md, "Invariants").
//!
//! The simulation knows the truth: which process runs where, and everything that was ever done to
//! it. `causes` notes each disruption with the generations whose restart it may explain. A restart
//! without such a cause is a violation (`starts`). Other checks are about what becomes durable
//! (`status`), about standbys (`standbys`, `ranks`), about containers without an agent
//! (`containers`), and about the end of the history (`end`).

use std::collections::{BTreeMap, BTreeSet};

pub(crate) mod budget;
mod causes;
mod containers;
mod end;
mod gangs;
mod leaders;
mod ranks;
mod standbys;
mod starts;
mod status;
mod stays_down;

use lockstep_api::{JobSet, Target};
use lockstep_core::restart::Durable;

use crate::time::Time;
use crate::world::World;
use crate::world::node::container::Identity;

/// A disruption that explains restarts of the generations from `lo` to `hi`.
#[derive(Debug, Clone)]
struct Cause {
    lo: u64,
    hi: u64,
    /// True if a restart because of it may count towards `maxRestarts`.
    counts: bool,
    /// The only worker that it concerns; `None` if it concerns all.
    only: Option<Identity>,
}

/// What the simulation knows and the system under test does not.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    causes: Vec<Cause>,
    /// The last generation that each worker was started with.
    starts: BTreeMap<Identity, u64>,
    /// The last container that was started of each worker without an agent.
    begun: BTreeMap<Identity, String>,
    /// The last container of each such worker that was stopped: for which generation, and on which
    /// node during which of its boots. The daemon's records do not outlive a boot.
    stopped: BTreeMap<Identity, (u64, String, (usize, u32))>,
    /// Containers without their agent that failed while their daemon let them run: at which
    /// generation, and on which node under which life of its daemon.
    beside: BTreeMap<String, (u64, (usize, u32))>,
    /// Containers that have failed and that nothing starts again, with the time of the failure.
    down: BTreeMap<String, Time>,
    /// Workers that ran together with all others when they last ended, with the generation.
    together: BTreeMap<Identity, u64>,
    /// Pods of workers that ended after they were scaled away.
    pub(crate) dropped: BTreeSet<String>,
    /// Pods whose worker was unwanted for some time.
    pub(crate) unwanted: BTreeSet<String>,
    /// Pods that the Job controller ends because their Job has failed: the failure of the Job
    /// counts, theirs do not.
    pub(crate) ended_by_job: BTreeSet<String>,
    /// Pods in which the worker with leftovers was started: it cannot start there a second time.
    used: BTreeSet<String>,
    /// The first failure of a scenario with leftovers has happened.
    pub(crate) has_failed: bool,
    /// The gangs that were ever admitted to the scheduler, and those whose minimum was ever bound,
    /// by the durable status.
    admitted_gangs: BTreeSet<gangs::Gang>,
    bound_gangs: BTreeSet<gangs::Gang>,
    /// Containers that were stopped for restarts.
    pub(crate) stops: u32,
    /// How many of these containers lacked the agent that they should have had.
    pub(crate) without_agent: u32,
    /// When each worker last ended.
    ended: BTreeMap<Identity, Time>,
    pub(crate) requests: budget::Requests,
    /// The highest epoch of a leader.
    epoch: u64,
    /// The highest generation that any leader has wanted.
    highest: u64,
    /// The generations of the whole group that were ever durable.
    of_all: BTreeSet<u64>,
    /// The targets of requests for worker restarts.
    pub(crate) requested_targets: Vec<Target>,
    /// The highest numbers of Jobs and pods that the JobSet ever specified.
    pub(crate) size: (usize, usize),
    max_restarts: u32,
    longest_timeout: Time,
    pub(crate) group_writes: u32,
    pub(crate) restarts: u32,
    /// How often all Jobs were recreated, and how often a restart went to a higher level because of
    /// what a restart in place leaves behind.
    recreations: u32,
    climbs: u32,
    /// How many of the restarts were worker restarts.
    pub(crate) worker_restarts: u32,
    /// How many of the worker restarts were requested.
    pub(crate) requested: u32,
    /// The JobSet was suspended at some time: workers that were released before may start a moment
    /// later.
    was_suspended: bool,
    stages: u32,
    calm: u32,
    /// Numbers of requests to the API server and of starts at the last check.
    at_last_check: (u64, u64),
    started: u64,
    /// Workers that went on from a standby.
    pub(crate) from_standby: u32,
    /// Ranks that went on from a standby.
    pub(crate) ranks_from_standby: u32,
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
        let (mut jobs, mut pods) = (0, 0);
        for job in &jobset.spec.replicated_jobs {
            let replicas = usize::try_from(job.replicas()).unwrap_or(0);
            jobs += replicas;
            pods += replicas * usize::try_from(job.parallelism()).unwrap_or(0);
        }
        let size = &mut self.truth.size;
        *size = (size.0.max(jobs), size.1.max(pods));
        self.truth.was_suspended |= jobset.is_suspended();
        self.truth.stages = u32::try_from(jobset.spec.replicated_jobs.len()).unwrap_or(0);
    }

    pub(crate) fn note_generation(&mut self, generation: u64) {
        self.truth.highest = self.truth.highest.max(generation);
    }
}

/// The highest durable generation, of the group or of a worker.
fn latest(durable: &Durable) -> u64 {
    durable.generation.max(durable.latest).0
}
