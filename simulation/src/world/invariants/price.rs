//! A budget for API requests: within any second, only a limited number is sent, and fewer still
//! fail.
//!
//! Each component of the control plane has its own budget, which all replicas share. A simulation
//! has one JobSet.

use std::collections::{BTreeMap, VecDeque};

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::request::Kind;

impl Kind {
    /// How many requests may be made in any second for this number of Jobs and pods, and how many
    /// of them may fail. What has failed once waits for 50 ms at least, and for twice as long each
    /// time: so each task, and each pod, fails only so often.
    fn limits(self, (jobs, pods): (usize, usize)) -> (usize, usize) {
        match self {
            Self::Group | Self::Status => (30, 15),
            // A conflict is not a failure: the task decides again after 20 ms.
            Self::Gangs => (50, 15),
            Self::Jobs => (12 * jobs, 15),
            // Each is looked for by two requests, and created by a third.
            Self::Pods => (10 + 12 * pods, 5 * pods),
            Self::Gates => (10 + 4 * pods, 15),
        }
    }
}

/// The requests of the last second.
#[derive(Debug, Default)]
struct Second {
    times: VecDeque<(Time, usize)>,
    number: usize,
}

impl Second {
    /// Adds some; returns how many that makes.
    fn add(&mut self, now: Time, number: usize) -> usize {
        self.times.push_back((now, number));
        self.number += number;
        while let Some((at, number)) = self.times.front().copied()
            && at + SEC <= now
        {
            self.times.pop_front();
            self.number -= number;
        }
        self.number
    }
}

/// What was asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Prices {
    asked: BTreeMap<Kind, Second>,
    in_vain: BTreeMap<Kind, Second>,
    /// All that was ever asked for.
    pub(super) all: u64,
}

impl World {
    /// So many requests of one kind are sent.
    pub(crate) fn note_requests(&mut self, kind: Kind, number: usize) {
        let now = self.now;
        let prices = &mut self.truth.prices;
        prices.all += number as u64;
        let asked = prices.asked.entry(kind).or_default().add(now, number);
        let (most, _) = kind.limits(self.truth.size);
        if asked > most {
            self.violate(format!(
                "{asked} requests of {kind:?} within a second, {most} are allowed"
            ));
        }
    }

    /// Requests of one kind that were sent together come to nothing: they are lost, refused, or
    /// outdated.
    pub(crate) fn note_in_vain(&mut self, kind: Kind) {
        let now = self.now;
        let prices = &mut self.truth.prices;
        let in_vain = prices.in_vain.entry(kind).or_default().add(now, 1);
        let (_, most) = kind.limits(self.truth.size);
        if in_vain > most {
            self.violate(format!(
                "{in_vain} requests of {kind:?} come to nothing within a second, {most} are allowed"
            ));
        }
    }
}
