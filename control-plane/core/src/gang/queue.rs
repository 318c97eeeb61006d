//! Which gangs wait, and what those behind them may do meanwhile.
//!
//! A gang passes those that wait before it if none of its pods can come to stand on a node that one
//! of them could use. Else it passes when two things hold. No gang of higher priority that it would
//! pass is as old or older. And the first that it would pass fits beside it, whichever nodes
//! kube-scheduler chooses, once those have ended that are before that one in the queue. So the
//! first one waits for none but those that run already, and each comes to be the first (EASY
//! backfill, without knowing how long anything runs).

use std::collections::BTreeMap;

use super::fit::{Demand, QueuePosition, Room};
use super::{Node, Pod};

/// The gangs that wait, as far as they concern those behind them, and the room that there is.
pub(super) struct Queue<'a> {
    /// The nodes as they are.
    pub(super) room: Room<'a>,
    /// The nodes as they will be once all JobSets have ended.
    pub(super) empty: Room<'a>,
    /// The nodes as they will be once those have ended that are before the first gang that waits.
    later: Option<Room<'a>>,
    /// What those need that wait, and that are the first to wait for the nodes that they could use.
    first: Vec<Vec<Demand<'a>>>,
}

/// What a gang has of the nodes.
#[derive(Default)]
pub(super) struct Held<'a> {
    /// Its pods that are bound and have not ended.
    pub(super) bound: Vec<&'a Pod>,
    /// Those that may be bound at any time.
    pub(super) coming: Vec<Demand<'a>>,
}

impl<'a> Queue<'a> {
    /// No gang waits yet.
    pub(super) fn new(nodes: &'a BTreeMap<String, Node>) -> Self {
        Self {
            room: Room::now(nodes),
            empty: Room::empty(nodes),
            later: None,
            first: Vec::new(),
        }
    }

    /// True if a gang of higher priority that is as old or older could use the same nodes, and is
    /// not bound.
    pub(super) fn is_behind(&self, place: QueuePosition, groups: &[Demand<'a>]) -> bool {
        self.room.is_preceded(groups, place)
    }

    /// Those behind, of lower priority and as old or younger, do not start on nodes that this one
    /// could use.
    pub(super) fn goes_before(&mut self, place: QueuePosition, groups: &[Demand<'a>]) {
        self.room.precede(groups, place);
    }

    /// True if a gang may start before those that wait.
    pub(super) fn may_pass(&self, place: QueuePosition, groups: &[Demand<'a>]) -> bool {
        if self.is_behind(place, groups) {
            return false;
        }
        let leaves_enough = |later: &Room<'a>| {
            let mut passed = self
                .first
                .iter()
                .filter(|first| later.shares_nodes(first, groups));
            passed.all(|first| later.fits_surely(first, groups))
        };
        self.room.is_open_to(groups) || self.later.as_ref().is_some_and(leaves_enough)
    }

    /// The gang starts.
    pub(super) fn starts(&mut self, groups: &[Demand<'a>]) {
        self.room.promise(groups);
        if let Some(later) = &mut self.later {
            later.promise(groups);
        }
    }

    /// The gang waits, and those behind `place` do not pass it. `behind` is what those behind it
    /// have.
    pub(super) fn waits<'h>(
        &mut self,
        place: QueuePosition,
        groups: Vec<Demand<'a>>,
        behind: impl Iterator<Item = &'h Held<'a>>,
    ) where
        'a: 'h,
    {
        self.room.close(&groups);
        self.room.precede(&groups, place);
        if self.later.is_none() {
            let mut later = self.empty.clone();
            for held in behind {
                for pod in &held.bound {
                    later.occupy(pod);
                }
                later.promise(&held.coming);
            }
            self.later = Some(later);
        }
        if !self
            .first
            .iter()
            .any(|first| self.room.shares_nodes(first, &groups))
        {
            self.first.push(groups);
        }
    }
}
