//! The restart of one worker, from its failure until it runs again.

use super::super::super::{
    Announcement, Cause, Generation, Incarnation, Reason, Report, RestartLevel, Scope, Timeline, UnixNanos,
};

/// The restart of one worker.
#[derive(Debug, Clone)]
pub(super) struct UnderWay {
    pub(super) generation: Generation,
    progress: Progress,
    /// How many pods this leader has deleted because the worker did not start in them.
    pub(super) moves: u32,
    /// For a released worker that is in sight: when it must be up. For one that is not expected:
    /// until when it may come back.
    pub(super) deadline: Option<UnixNanos>,
    /// `None` if another leader has begun it.
    pub(super) begun: Option<Begun>,
}

/// What this leader knows of a restart that it has begun.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub(super) cause: Cause,
    pub(super) timeline: Timeline,
    /// UID of the pod that the worker failed in.
    pub(super) pod: String,
    /// Set if it counts towards `maxRestarts`.
    pub(super) counted: bool,
}

/// The progress of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Not durable under this leader's epoch: the worker gets no order.
    Pending,
    /// Durable: the worker has its order, and waits for its release.
    Ordered,
    /// A former leader has released an incarnation, and this one has not written yet.
    ReleasedBefore,
    /// Durable, and an incarnation is released.
    Released,
}

impl UnderWay {
    pub(super) fn new(generation: Generation) -> Self {
        Self {
            generation,
            progress: Progress::Pending,
            moves: 0,
            deadline: None,
            begun: None,
        }
    }

    /// True if it is durable under this leader's epoch.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.progress, Progress::Ordered | Progress::Released)
    }

    /// True if an incarnation is released at its generation.
    pub(super) fn is_released(&self) -> bool {
        matches!(self.progress, Progress::ReleasedBefore | Progress::Released)
    }

    /// True if this leader has begun it because of a request.
    pub(super) fn is_requested(&self) -> bool {
        let begun = self.begun.as_ref();
        begun.is_some_and(|begun| begun.cause.reason == Reason::ManualRequest)
    }

    /// True if this leader has counted it.
    pub(super) fn is_counted(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.counted)
    }

    pub(super) fn is_reached(&self, report: &Report) -> bool {
        report.generation >= self.generation
    }

    /// Marks it as durable under this leader's epoch.
    pub(super) fn written(&mut self) {
        self.progress = match self.progress {
            Progress::Pending | Progress::Ordered => Progress::Ordered,
            Progress::ReleasedBefore | Progress::Released => Progress::Released,
        };
    }

    /// Notes when the write was first seen.
    pub(super) fn note_written(&mut self, now: UnixNanos) {
        if let Some(begun) = &mut self.begun
            && begun.timeline.written_at == UnixNanos::default()
        {
            begun.timeline.written_at = now;
        }
    }

    /// An incarnation is released.
    pub(super) fn release(&mut self, now: UnixNanos) {
        self.progress = match self.progress {
            Progress::Pending | Progress::ReleasedBefore => Progress::ReleasedBefore,
            Progress::Ordered | Progress::Released => Progress::Released,
        };
        if let Some(begun) = &mut self.begun {
            begun.timeline.released_at = now;
        }
    }

    /// Returns to waiting for the next incarnation, because the released one is lost.
    pub(super) fn wait_for_next_incarnation(&mut self) {
        self.progress = match self.progress {
            Progress::Pending | Progress::ReleasedBefore => Progress::Pending,
            Progress::Ordered | Progress::Released => Progress::Ordered,
        };
        self.deadline = None;
    }

    /// What to announce once the worker runs.
    pub(super) fn restarted(&self, incarnation: &Incarnation, report: &Report) -> Option<Announcement> {
        let begun = self.begun.as_ref()?;
        let replaced = incarnation.pod_uid != begun.pod;
        let mut timeline = Timeline {
            running_at: report.since,
            replaced: usize::from(replaced),
            ..begun.timeline
        };
        timeline.note_starts([report].into_iter());
        Some(Announcement::Restarted {
            scope: Scope::Worker,
            timeline,
            cause: begun.cause.clone(),
            level: if replaced {
                RestartLevel::Pod
            } else {
                RestartLevel::Process
            },
        })
    }
}
