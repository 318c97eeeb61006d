//! Delays steps that would decide nothing.
//!
//! While all workers stop or start, thousands of reports arrive, and only the last one lets the
//! restart go on. A step reads all workers, so it waits for that report. That is safe, because a
//! late step is like late reports. The caller bounds the delay, in case the count is wrong.

use super::{Generation, Heartbeat, Phase, Report};

/// Counts the workers that do not park or run at a generation yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepDelay {
    generation: Generation,
    goal: Goal,
    left: usize,
}

/// The phase that ends the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// All wait at the barrier.
    Parked,
    /// All run past it.
    Running,
}

impl Goal {
    fn phase(self) -> Phase {
        match self {
            Self::Parked => Phase::Parked,
            Self::Running => Phase::Running,
        }
    }

    /// The phase before it.
    fn phase_before(self) -> Phase {
        match self {
            Self::Parked => Phase::Stopping,
            Self::Running => Phase::Starting,
        }
    }
}

impl StepDelay {
    /// Counts no worker yet.
    pub(super) fn new(generation: Generation, goal: Goal) -> Self {
        Self {
            generation,
            goal,
            left: 0,
        }
    }

    /// Counts this worker if it is on its way. A worker that is out of sight does not count.
    pub(super) fn and(mut self, report: &Report) -> Self {
        self.left += usize::from(self.awaits(report.phase, report.generation));
        self
    }

    /// `None` if no worker is left.
    pub(super) fn if_any(self) -> Option<Self> {
        (self.left > 0).then_some(self)
    }

    fn has_arrived(&self, phase: Phase, generation: Generation) -> bool {
        phase == self.goal.phase() && generation == self.generation
    }

    fn awaits(&self, phase: Phase, generation: Generation) -> bool {
        let lives = matches!(
            phase,
            Phase::Starting | Phase::Running | Phase::Stopping | Phase::Parked | Phase::Exited(_)
        );
        lives && generation <= self.generation && !self.has_arrived(phase, generation)
    }

    /// True if this report needs no step: the worker, which was in the phase and at the generation
    /// of `before`, is on its way, or has arrived and is not the last one.
    pub fn defers(&mut self, before: (Phase, Generation), report: &Report) -> bool {
        let (phase, generation) = before;
        let is_well = matches!(report.heartbeat, Heartbeat::Well | Heartbeat::Awaited);
        if !is_well || !self.awaits(phase, generation) {
            return false;
        }
        if report.phase == self.goal.phase_before() {
            return report.generation <= self.generation;
        }
        if !self.has_arrived(report.phase, report.generation) {
            return false;
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}
