//! The last restarts of a group, as its task has announced them.
//!
//! Promises: it holds the newest [`KEPT`] restarts that this leader has seen. Nothing of it is
//! durable.

use std::collections::VecDeque;

use lockstep_core::restart::{Announcement, Cause, Generation, RestartLevel, Scope, Timeline, UnixNanos};

#[cfg(test)]
mod tests;

/// Restarts that are kept for one group.
const KEPT: usize = 32;

/// One restart.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) generation: Generation,
    pub(crate) scope: Scope,
    pub(crate) cause: Cause,
    /// The highest level that it reached, if known.
    pub(crate) level: Option<RestartLevel>,
    pub(crate) begun: UnixNanos,
    pub(crate) outcome: Outcome,
}

/// How a restart ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    UnderWay,
    /// All workers run again.
    Done(Box<Timeline>),
    /// Another restart, a recreation or a suspension came before its end.
    Superseded,
}

/// The last restarts of one group, and the start of the record.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) since: UnixNanos,
    entries: VecDeque<Entry>,
}

impl History {
    pub(crate) fn new(since: UnixNanos) -> Self {
        Self {
            since,
            entries: VecDeque::new(),
        }
    }

    /// The newest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// Records an announcement.
    pub(crate) fn note(&mut self, announcement: &Announcement, now: UnixNanos) {
        match announcement {
            Announcement::Restarting {
                scope,
                generation,
                cause,
            } => self.begin(*scope, *generation, cause, None, now),
            Announcement::Recreating { generation, cause } => {
                self.begin(
                    Scope::Group,
                    *generation,
                    cause,
                    Some(RestartLevel::Recreate),
                    now,
                );
            }
            Announcement::Restarted {
                scope,
                timeline,
                cause,
                level,
            } => {
                let generation = timeline.generation;
                let known = |entry: &Entry| (entry.scope, entry.generation) == (*scope, generation);
                if !self.entries.iter().any(known) {
                    // A former leader began it.
                    self.begin(*scope, generation, cause, None, timeline.detected_at);
                }
                if let Some(entry) = self.entries.iter_mut().rfind(|entry| known(entry)) {
                    entry.outcome = Outcome::Done(Box::new(*timeline));
                    entry.level = Some(*level);
                    if timeline.failed_at != UnixNanos::default() {
                        entry.begun = timeline.failed_at;
                    }
                }
            }
            Announcement::Exhausted { .. }
            | Announcement::Escalated { .. }
            | Announcement::Climbed { .. }
            | Announcement::Blocked(_) => {}
        }
    }

    /// Ends the restarts in progress, because the JobSet is suspended.
    pub(crate) fn supersede(&mut self) {
        for entry in &mut self.entries {
            if matches!(entry.outcome, Outcome::UnderWay) {
                entry.outcome = Outcome::Superseded;
            }
        }
    }

    fn begin(
        &mut self,
        scope: Scope,
        generation: Generation,
        cause: &Cause,
        level: Option<RestartLevel>,
        now: UnixNanos,
    ) {
        // A restart of the group ends all others. A worker restart ends only an earlier one of the
        // same worker.
        match scope {
            Scope::Group => self.supersede(),
            Scope::Worker => {
                let same = |entry: &&mut Entry| {
                    entry.scope == Scope::Worker && entry.cause.identity == cause.identity
                };
                for entry in self.entries.iter_mut().filter(same) {
                    if matches!(entry.outcome, Outcome::UnderWay) {
                        entry.outcome = Outcome::Superseded;
                    }
                }
            }
        }
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            generation,
            scope,
            cause: cause.clone(),
            level,
            begun: cause.at.unwrap_or(now),
            outcome: Outcome::UnderWay,
        });
    }
}
