//! The waiting gangs, and which gangs behind them may start meanwhile.
//!
//! A gang may pass the gangs that wait before it if none of its pods can run on a node that one of
//! them could use. Otherwise it may pass under two conditions: no gang of higher priority that it
//! would pass is as old or older; and the first gang that it would pass still fits beside it,
//! whichever nodes kube-scheduler chooses, once all gangs before that one have ended. So the first
//! gang waits only for gangs that already run, and every gang becomes the first in the end (EASY
//! backfill without knowledge of run times).

use std::collections::BTreeMap;

use super::fit::{Demand, QueuePosition, Room};
use super::{Node, Pod};

/// The waiting gangs, as far as they concern those behind them, and the free room.
pub(super) struct Queue<'a> {
    /// The nodes as they are.
    pub(super) room: Room<'a>,
    /// The nodes as they will be once all JobSets have ended.
    pub(super) empty: Room<'a>,
    /// The nodes as they will be once all gangs before the first waiting one have ended.
    later: Option<Room<'a>>,
    /// The needs of waiting gangs that are the first to wait for the nodes that they could use.
    first: Vec<Vec<Demand<'a>>>,
}

/// What a gang takes of the nodes.
#[derive(Default)]
pub(super) struct Held<'a> {
    /// Its pods that are bound and have not ended.
    pub(super) bound: Vec<&'a Pod>,
    /// Its pods that may be bound at any time.
    pub(super) coming: Vec<Demand<'a>>,
}

impl<'a> Queue<'a> {
    /// A queue in which no gang waits yet.
    pub(super) fn new(nodes: &'a BTreeMap<String, Node>) -> Self {
        Self {
            room: Room::now(nodes),
            empty: Room::empty(nodes),
            later: None,
            first: Vec::new(),
        }
    }

    /// True if a gang of higher priority, as old or older and not bound yet, could use the same
    /// nodes.
    pub(super) fn is_behind(&self, position: QueuePosition, demands: &[Demand<'a>]) -> bool {
        self.room.is_preceded(demands, position)
    }

    /// Keeps gangs of lower priority that are as old or younger from starting on nodes that this
    /// one could use.
    pub(super) fn goes_before(&mut self, position: QueuePosition, demands: &[Demand<'a>]) {
        self.room.precede(demands, position);
    }

    /// True if a gang may start before the waiting ones.
    pub(super) fn may_pass(&self, position: QueuePosition, demands: &[Demand<'a>]) -> bool {
        if self.is_behind(position, demands) {
            return false;
        }
        let leaves_enough = |later: &Room<'a>| {
            let mut passed = self
                .first
                .iter()
                .filter(|first| later.shares_nodes(first, demands));
            passed.all(|first| later.fits_surely(first, demands))
        };
        self.room.is_open_to(demands) || self.later.as_ref().is_some_and(leaves_enough)
    }

    /// The gang starts.
    pub(super) fn starts(&mut self, demands: &[Demand<'a>]) {
        self.room.promise(demands);
        if let Some(later) = &mut self.later {
            later.promise(demands);
        }
    }

    /// The gang waits, and gangs behind `position` do not pass it. `behind` is what the gangs
    /// behind it take of the nodes.
    pub(super) fn waits<'h>(
        &mut self,
        position: QueuePosition,
        demands: Vec<Demand<'a>>,
        behind: impl Iterator<Item = &'h Held<'a>>,
    ) where
        'a: 'h,
    {
        self.room.close(&demands);
        self.room.precede(&demands, position);
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
            .any(|first| self.room.shares_nodes(first, &demands))
        {
            self.first.push(demands);
        }
    }
}
