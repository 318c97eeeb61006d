//! The workers of one node that have a report in a group.
//!
//! Promises: there are never more than [`WORKERS_PER_NODE`]. Workers that the daemon no longer
//! lists make room for new ones, ended workers first. So a new worker is refused only if the daemon
//! still lists all others.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::restart::{Incarnation, Phase};

use crate::hub::convert::Reported;
use crate::hub::report_limits::{ReportLimit, WORKERS_PER_NODE};

#[derive(Default)]
pub(super) struct Workers {
    known: BTreeMap<Incarnation, KnownWorker>,
    /// Workers that the daemon no longer lists, with true if they lived when it last did. So ended
    /// ones come first.
    unlisted: BTreeSet<(bool, Incarnation)>,
}

struct KnownWorker {
    group: String,
    lives: bool,
    is_listed: bool,
}

impl Workers {
    /// Remembers a worker and its only group. Returns the worker that had to make room for it, with
    /// its group.
    ///
    /// # Errors
    /// If the worker belongs to another group, or there is no room.
    pub(super) fn remember(
        &mut self,
        reported: &Reported,
    ) -> Result<Option<(Incarnation, String)>, ReportLimit> {
        let incarnation = &reported.incarnation;
        let lives = !matches!(reported.report.phase, Phase::Lost(_) | Phase::Done);
        if let Some(known) = self.known.get_mut(incarnation) {
            if known.group != reported.group {
                return Err(ReportLimit::OtherGroup);
            }
            if !known.is_listed {
                self.unlisted.remove(&(known.lives, incarnation.clone()));
            }
            known.is_listed = true;
            known.lives = lives;
            return Ok(None);
        }
        let mut gone = None;
        if self.known.len() >= WORKERS_PER_NODE {
            let (_, first) = self.unlisted.pop_first().ok_or(ReportLimit::TooMany)?;
            let known = self.known.remove(&first);
            gone = known.map(|known| (first, known.group));
        }
        let known = KnownWorker {
            group: reported.group.clone(),
            lives,
            is_listed: true,
        };
        self.known.insert(incarnation.clone(), known);
        Ok(gone)
    }

    /// Notes that the daemon no longer lists a worker.
    pub(super) fn unlist(&mut self, incarnation: &Incarnation) {
        if let Some(known) = self.known.get_mut(incarnation) {
            known.is_listed = false;
            self.unlisted.insert((known.lives, incarnation.clone()));
        }
    }

    /// Notes that another stream begins, which lists its workers again.
    pub(super) fn unlist_all(&mut self) {
        for (incarnation, known) in &mut self.known {
            known.is_listed = false;
            self.unlisted.insert((known.lives, incarnation.clone()));
        }
    }

    /// Forgets a worker that has no report in any group.
    pub(super) fn forget(&mut self, incarnation: &Incarnation) {
        if let Some(known) = self.known.remove(incarnation) {
            self.unlisted.remove(&(known.lives, incarnation.clone()));
        }
    }

    /// Each worker, with its group.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Incarnation, &str)> {
        self.known
            .iter()
            .map(|(incarnation, known)| (incarnation, known.group.as_str()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
