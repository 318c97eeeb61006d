//! Calls: a worker that is a launcher starts processes, its ranks, through the agent. Which of them
//! go on from a standby, and when a caller runs its program itself.
//!
//! It promises (restart-protocol.md, rule 18):
//! - A standby is released for a call only while the worker runs and is not being stopped. It is
//!   ready then, and was not told to end.
//! - No call is answered while a rank still dies that was killed because its caller had gone: the
//!   launcher may be about to start it again.
//! - If a standby was released for a call, the caller runs the program itself only once that
//!   standby has ended without running anything of the program.

use std::time::Duration;

use lockstep_mutants::mutant;

use super::{Machine, Phase};

/// How long a released standby of a rank may take to confirm that it goes on.
pub(super) const CONFIRM: Duration = Duration::from_secs(5);

impl Machine {
    /// True while calls are served: the worker runs, and is not being stopped.
    #[must_use]
    pub fn serves_calls(&self) -> bool {
        match self.status.phase {
            Phase::Starting | Phase::Running => true,
            Phase::Stopping => mutant!(ServeCallsOfStopped),
            Phase::Fresh | Phase::Parked | Phase::Exited(_) | Phase::Done => false,
        }
    }
}

/// True if calls can be answered. `dying`: how many ranks were killed because their callers had
/// gone, and have not been reaped.
#[must_use]
pub fn may_be_answered(dying: usize) -> bool {
    dying == 0
}

/// A standby of a rank that belongs to no attempt yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankStandby {
    /// It still imports.
    Imports,
    /// It waits to be released.
    Ready,
    /// It was told to end, and has not been reaped.
    Ending,
}

impl RankStandby {
    /// True if it can be released for a call.
    #[must_use]
    pub fn may_go_on(self) -> bool {
        match self {
            Self::Imports => false,
            Self::Ready => true,
            Self::Ending => mutant!(ReleaseEndingRank),
        }
    }
}

/// The release of a standby for a call, until the standby has confirmed it.
#[derive(Clone, Copy, Debug)]
pub struct RankRelease {
    /// When it has to have confirmed; none once it was killed for that.
    by: Option<Duration>,
    ended: bool,
}

impl RankRelease {
    /// A release at this time.
    #[must_use]
    pub fn at(now: Duration) -> Self {
        Self {
            by: Some(now + CONFIRM).filter(|_| !mutant!(NeverGiveUpRank)),
            ended: false,
        }
    }

    /// When [`RankRelease::gives_up`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.by
    }

    /// True, once, if the standby takes too long: it is to be killed.
    pub fn gives_up(&mut self, now: Duration) -> bool {
        self.by.take_if(|by| *by <= now).is_some()
    }

    /// The standby has been reaped, and has not confirmed.
    pub fn has_ended(&mut self) {
        self.ended = true;
    }

    /// True if the caller is to run the program itself.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.ended || self.by.is_none() && mutant!(ColdRankBesideStandby)
    }
}
