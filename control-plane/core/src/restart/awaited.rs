//! Whom a restart waits for.
//!
//! While all workers stop, or start, thousands of reports come of which only the last one lets the restart go on. Each step looks at all workers, so
//! it is put off until then. That is safe, as it is that reports are late: a step decides on what there is when it comes. Whoever puts steps off
//! bounds for how long, should the count be wrong.

use super::{Generation, Heartbeat, Phase, Report};

/// How many workers have yet to stop, or to start, at a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    generation: Generation,
    goal: Goal,
    left: usize,
}

/// Where they are awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// At the barrier.
    Parked,
    /// On the other side of it.
    Running,
}

impl Goal {
    fn phase(self) -> Phase {
        match self {
            Self::Parked => Phase::Parked,
            Self::Running => Phase::Running,
        }
    }

    /// What is reported on the way there.
    fn phase_before(self) -> Phase {
        match self {
            Self::Parked => Phase::Stopping,
            Self::Running => Phase::Starting,
        }
    }
}

impl Awaited {
    /// Nobody yet.
    pub(super) fn new(generation: Generation, goal: Goal) -> Self {
        Self {
            generation,
            goal,
            left: 0,
        }
    }

    /// The same with this worker, if it is on its way. Who is out of sight is not, as far as anybody can see.
    pub(super) fn and(mut self, report: &Report) -> Self {
        self.left += usize::from(self.awaits(report.phase, report.generation));
        self
    }

    /// `None`: nobody is left.
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

    /// Whether what an incarnation reports now, where it was in this phase at this generation before, calls for no step: it is on its way, or has got there
    /// and is not the last one.
    pub fn passes_over(&mut self, before: (Phase, Generation), report: &Report) -> bool {
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
