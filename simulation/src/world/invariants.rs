//! What must hold, checked as it happens (docs/restart-protocol.md, "Invariants").
//!
//! The simulation knows the truth: which process runs where, and everything that was ever done to
//! it. Each disruption is noted with the generations that it may explain a restart of (`causes`);
//! whatever is started again without one is a violation (`starts`). Others look at what becomes
//! durable (`status`), at containers without an agent, and at the end of the story.

use std::collections::{BTreeMap, BTreeSet};

mod causes;
mod containers;
mod end;
mod gangs;
mod leaders;
pub(crate) mod price;
mod starts;
mod status;
mod stays_down;

use lockstep_api::{JobSet, Target};
use lockstep_core::restart::Durable;

use crate::time::Time;
use crate::world::World;
use crate::world::node::container::Identity;

/// Something that explains restarts of the generations from `lo` to `hi`.
#[derive(Debug, Clone)]
struct Cause {
    lo: u64,
    hi: u64,
    /// True if a counted restart may follow from it.
    counts: bool,
    /// The only worker that it concerns. None: all.
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
    /// The last one of each that was stopped, for which generation, and in which life of which
    /// node: what was written down outlives no other.
    stopped: BTreeMap<Identity, (u64, String, (usize, u32))>,
    /// Containers without their agent that failed while their daemon let them run, at which
    /// generation, and in which life of which daemon.
    beside: BTreeMap<String, (u64, (usize, u32))>,
    /// Containers that have failed and that nothing starts again, and since when.
    down: BTreeMap<String, Time>,
    /// Workers that ran together with all others, at this generation, when they last ended.
    together: BTreeMap<Identity, u64>,
    /// Pods of workers that were let go.
    pub(crate) let_go: BTreeSet<String>,
    /// Pods whose worker was not wanted for a while.
    pub(crate) unwanted: BTreeSet<String>,
    /// Pods that the Job controller ends because their Job has failed: that counts, and they do
    /// not.
    pub(crate) ended_by_job: BTreeSet<String>,
    /// Pods in which the worker was started that cannot be started twice in one.
    used: BTreeSet<String>,
    /// The one failure has happened that it does not lead to.
    pub(crate) has_failed: bool,
    /// The gangs that were ever let go, and those of which the minimum was ever bound, as it is
    /// durable.
    let_go_gangs: BTreeSet<gangs::Gang>,
    bound_gangs: BTreeSet<gangs::Gang>,
    /// Containers that were stopped for restarts.
    pub(crate) stops: u32,
    /// Those of them that had no agent, and should have had one.
    pub(crate) without_agent: u32,
    /// When each worker last ended.
    ended: BTreeMap<Identity, Time>,
    pub(crate) prices: price::Prices,
    /// The highest epoch of a leader.
    epoch: u64,
    /// The highest generation that anybody has wished for.
    highest: u64,
    /// The generations of restarts of the whole group that were ever durable.
    of_all: BTreeSet<u64>,
    /// The targets of requests for worker restarts.
    pub(crate) asked: Vec<Target>,
    /// The most Jobs and pods that the JobSet was ever to have.
    pub(crate) size: (usize, usize),
    max_restarts: u32,
    longest_timeout: Time,
    pub(crate) group_writes: u32,
    pub(crate) restarts: u32,
    /// How often all Jobs were recreated, and how often the pod of a worker or all Jobs were
    /// because of what a restart in place leaves behind.
    recreations: u32,
    climbs: u32,
    /// Those of them that were worker restarts.
    pub(crate) worker_restarts: u32,
    /// Those of these that somebody has asked for.
    pub(crate) requested: u32,
    /// The JobSet was suspended: what was released before may start a moment later.
    was_suspended: bool,
    stages: u32,
    calm: u32,
    /// Requests to the API server and starts at the last look.
    at_last_check: (u64, u64),
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

/// The highest generation that was given, as far as it is durable.
fn latest(durable: &Durable) -> u64 {
    durable.generation.max(durable.latest).0
}
