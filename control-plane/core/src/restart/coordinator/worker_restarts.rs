//! Worker restarts (`lockstep.dev/restart-scope: worker`): there is no barrier, and no other worker
//! is touched.
//!
//! ```text
//!            fails                  durable              back-off over           runs at x
//!  runs ──────────────> Pending(x) ─────────> Ordered(x) ───────────────> Released(x) ─────> runs
//!                           ^                   ^     released incarnation     │    │
//!                           │                   └──────────── lost ────────────┘    │
//!                           └─────────────────────── fails at x ────────────────────┘
//! ```
//!
//! Promises: a worker gets its generation only after the restart and its count are durable, so a
//! restart that could not be written never happened; while a restart is under way, only an end at
//! its own generation counts; a restart of the group ends all of them.

use std::collections::BTreeMap;

use lockstep_mutants::mutant;

use super::super::{Durable, Generation, Identity, UnixNanos};
use super::backoff::Backoff;
use super::climb::LatestRestart;
use under_way::UnderWay;

mod drive;
mod generations;
mod limit;
mod pod_mates;
mod under_way;

/// How many worker restarts of one group may be under way at a time: the status lists them all.
pub const WORKER_RESTARTS_AT_ONCE: usize = 256;

/// The worker restarts since the last restart of the group.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerRestarts {
    /// The highest generation given, to the group or to one worker.
    pub(super) latest: Generation,
    /// The generation of each restarted worker, once it may be sent to the worker.
    assigned: BTreeMap<Identity, Generation>,
    /// Restarts that are under way.
    under_way: BTreeMap<Identity, UnderWay>,
    /// Restarts that have begun and wait for their turn again, because no node reports their
    /// workers.
    postponed: BTreeMap<Identity, UnderWay>,
    backoffs: BTreeMap<Identity, Backoff>,
    /// The latest restart of each worker since the last restart of the group.
    latest_restarts: BTreeMap<Identity, LatestRestart>,
}

impl WorkerRestarts {
    /// Takes over the durable restarts.
    pub(super) fn recover(durable: &Durable) -> Self {
        let mut worker_restarts = Self {
            latest: durable.latest.max(durable.generation),
            ..Self::default()
        };
        if !mutant!(ForgetWorkerRestarts) {
            for (identity, generation) in &durable.worker_restarts {
                worker_restarts
                    .under_way
                    .insert(identity.clone(), UnderWay::new(*generation));
            }
        }
        worker_restarts
    }

    /// Every worker has the group's new generation.
    pub(super) fn absorb(&mut self, generation: Generation) {
        self.latest = self.latest.max(generation);
        self.assigned.clear();
        self.under_way.clear();
        self.postponed.clear();
        self.latest_restarts.clear();
    }

    /// The Jobs are recreated.
    pub(super) fn forget(&mut self) {
        self.assigned.clear();
        self.under_way.clear();
        self.postponed.clear();
        self.backoffs.clear();
        self.latest_restarts.clear();
    }

    /// The latest restart of this worker.
    pub(super) fn latest_restart(&self, identity: &Identity) -> Option<&LatestRestart> {
        self.latest_restarts.get(identity)
    }

    /// Notes the latest restart of this worker.
    pub(super) fn set_latest_restart(&mut self, identity: &Identity, latest_restart: LatestRestart) {
        self.latest_restarts.insert(identity.clone(), latest_restart);
    }

    /// All workers were released.
    pub(super) fn released(&mut self, now: UnixNanos) {
        for backoff in self.backoffs.values_mut() {
            backoff.released(now);
        }
    }

    /// True if a restart of this worker is under way.
    pub(super) fn contains(&self, identity: &Identity) -> bool {
        self.under_way.contains_key(identity) || self.postponed.contains_key(identity)
    }

    /// True if a restart of this worker has not released it yet. It covers the worker's failures.
    pub(super) fn covers(&self, identity: &Identity) -> bool {
        let restart = self.under_way.get(identity);
        restart.is_some_and(|restart| !restart.is_released()) || self.postponed.contains_key(identity)
    }

    /// The restarts that should be durable.
    pub(super) fn entries(&self) -> BTreeMap<Identity, Generation> {
        self.under_way
            .iter()
            .map(|(identity, restart)| (identity.clone(), restart.generation))
            .collect()
    }

    /// True if no worker was restarted since the last restart of the group.
    pub(super) fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.under_way.is_empty()
    }

    /// True if this worker restarts at a generation that `other` does not know.
    pub(super) fn has_begun(&self, identity: &Identity, other: &Self) -> bool {
        let of = |worker_restarts: &Self| {
            worker_restarts
                .under_way
                .get(identity)
                .map(|restart| restart.generation)
        };
        of(self).is_some() && of(self) != of(other)
    }

    /// When to step again.
    pub(super) fn wake_at(&self) -> impl Iterator<Item = UnixNanos> + '_ {
        let deadlines = self.under_way.values().filter_map(|restart| restart.deadline);
        let held = self
            .under_way
            .iter()
            .filter(|(_, restart)| !restart.is_released());
        let over = held.filter_map(|(identity, _)| self.backoffs.get(identity)?.over_at());
        deadlines.chain(over)
    }

    /// How many restarts count and are not durable yet.
    fn not_durable(&self, durable: &Durable) -> usize {
        let later = |restart: &&UnderWay| restart.generation > durable.latest && restart.is_counted();
        self.under_way.values().filter(later).count()
    }
}
