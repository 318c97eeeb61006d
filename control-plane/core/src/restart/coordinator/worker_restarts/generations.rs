//! Generations of single workers: which one a worker should have, and which ones other leaders have
//! assigned.

use lockstep_mutants::mutant;

use super::super::super::{Durable, Generation, Identity, Observed, Scope};
use super::super::Coordinator;
use super::under_way::UnderWay;

impl Coordinator {
    /// The generation that this worker should have.
    pub(in super::super) fn wanted(&self, identity: &Identity) -> Generation {
        self.worker_restarts
            .assigned
            .get(identity)
            .copied()
            .unwrap_or(self.generation)
    }

    /// Raises the generation of the whole group.
    pub(in super::super) fn raise(&mut self) {
        let generation = self.worker_restarts.latest.max(self.generation).next();
        self.adopt_generation(generation);
    }

    /// Assigns this generation to the group, and so to every worker.
    pub(in super::super) fn adopt_generation(&mut self, generation: Generation) {
        // A generation that cannot be written can never be released.
        let generation = generation.min(Generation::LAST);
        self.generation = generation;
        self.worker_restarts.absorb(generation);
    }

    /// Follows the last write of a former leader, at the generation that this one knows. The
    /// durable state wins. This leader has sent no orders for its own decisions at the same
    /// generations, and decides them again.
    pub(in super::super) fn follow_worker_restarts(&mut self, durable: &Durable) {
        let epoch = self.epoch;
        // A request is handled once. That must be durable before any worker gets its order.
        let is_heard = durable.handled_worker_restart == self.handled_worker_restart;
        // An old CRD has pruned it. Then no worker gets an order, the request counts as handled in
        // memory, and its workers are watched as before.
        let is_lost = !is_heard && durable.handled_worker_restart.is_none() && durable.epoch == epoch;
        let mut lost = false;
        self.worker_restarts.under_way.retain(|identity, restart| {
            let is_written = durable.worker_restarts.get(identity) == Some(&restart.generation);
            let never_told = restart.is_requested() && !restart.is_durable() && is_written && is_lost;
            lost |= never_told;
            !never_told
        });
        self.handled_is_lost |= lost;
        let before = self.worker_restarts.under_way.len();
        self.worker_restarts.under_way.retain(|identity, restart| {
            let is_written = durable.worker_restarts.get(identity) == Some(&restart.generation);
            if is_written && durable.epoch == epoch && (is_heard || !restart.is_requested()) {
                restart.written();
            }
            restart.is_durable() || is_written || restart.generation > durable.latest
        });
        let mut foreign =
            self.worker_restarts.under_way.len() != before || durable.latest > self.worker_restarts.latest;
        for (identity, generation) in &durable.worker_restarts {
            let known = self.worker_restarts.under_way.get(identity);
            let is_news = *generation > self.wanted(identity)
                && known.is_none_or(|known| !known.is_durable() && known.generation != *generation)
                && durable.epoch < epoch
                && !mutant!(ForgetWorkerRestarts);
            if is_news {
                let restart = UnderWay::new(*generation);
                self.worker_restarts.under_way.insert(identity.clone(), restart);
                foreign = true;
            }
        }
        self.worker_restarts.latest = self.worker_restarts.latest.max(durable.latest);
        if foreign {
            let more = u32::try_from(self.worker_restarts.not_durable(durable)).unwrap_or(u32::MAX);
            self.counted_restarts = durable.counted_restarts.saturating_add(more);
            // What this leader has begun for a request may be decided again.
            self.handled_worker_restart
                .clone_from(&durable.handled_worker_restart);
        }
    }

    /// True if a worker reports an unknown generation while this leader's copy of the status may be
    /// old. The newest status has the generations of single workers: a write reads it, and fences
    /// off former leaders.
    pub(in super::super) fn may_be_behind(&self, observed: &Observed) -> bool {
        let known = self.generation.max(self.worker_restarts.latest);
        let any_has_scope = |scope| observed.workers.values().any(|worker| worker.scope == scope);
        observed.durable.epoch < self.epoch
            && any_has_scope(Scope::Worker)
            && observed.reports.values().any(|report| report.generation > known)
    }

    /// Learns from workers at which generation they were restarted, unless it is above all assigned
    /// ones.
    pub(in super::super) fn learn_worker_restarts(&mut self, observed: &Observed) {
        for report in observed.reports.values() {
            if report.generation > self.generation
                && report.generation <= self.worker_restarts.latest
                && report.generation > self.wanted(&report.identity)
            {
                self.worker_restarts
                    .assigned
                    .insert(report.identity.clone(), report.generation);
            }
        }
    }
}
