//! The workers of one node of which a group keeps a report.
//!
//! Promises: there are never more than [`WORKERS_PER_NODE`]; who is new is refused only where the
//! node's daemon lists all of them. Who is listed no more goes to make room, those that have ended
//! first: pods that come and go take it from nobody.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::restart::{Incarnation, Phase};

use crate::hub::convert::Reported;
use crate::hub::report_limits::{ReportLimit, WORKERS_PER_NODE};

#[derive(Default)]
pub(super) struct Workers {
    known: BTreeMap<Incarnation, KnownWorker>,
    /// Those that the daemon does not list: whether they lived when it last did, and who. So the
    /// ended ones are first.
    unlisted: BTreeSet<(bool, Incarnation)>,
}

struct KnownWorker {
    group: String,
    lives: bool,
    is_listed: bool,
}

impl Workers {
    /// The one group that keeps a report of each, and not more of them than may be. Gives who had
    /// to go for it, and the group of that.
    ///
    /// # Errors
    /// If it is of another group, or there is no room.
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

    /// The daemon does not list it any more.
    pub(super) fn unlist(&mut self, incarnation: &Incarnation) {
        if let Some(known) = self.known.get_mut(incarnation) {
            known.is_listed = false;
            self.unlisted.insert((known.lives, incarnation.clone()));
        }
    }

    /// Another stream begins, and lists all there are.
    pub(super) fn unlist_all(&mut self) {
        for (incarnation, known) in &mut self.known {
            known.is_listed = false;
            self.unlisted.insert((known.lives, incarnation.clone()));
        }
    }

    /// No group keeps a report of it any more.
    pub(super) fn forget(&mut self, incarnation: &Incarnation) {
        if let Some(known) = self.known.remove(incarnation) {
            self.unlisted.remove(&(known.lives, incarnation.clone()));
        }
    }

    /// Each, and its group.
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
