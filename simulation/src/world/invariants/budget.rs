//! A budget for API requests: within any second, only a limited number is sent, and fewer still
//! fail.
//!
//! Each component of the control plane has its own budget, which all replicas share. There is one
//! JobSet.

use std::collections::{BTreeMap, VecDeque};

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::request::Kind;

impl Kind {
    /// How many requests may be sent in any second for this number of Jobs and pods, and how many
    /// of them may fail. After a failure a task waits for at least 50 ms, and twice as long each
    /// time, so each task and each pod can fail only a few times.
    fn limits(self, (jobs, pods): (usize, usize)) -> (usize, usize) {
        match self {
            Self::Group | Self::Status => (30, 15),
            // A conflict is not a failure: the task decides again after 20 ms.
            Self::Gangs => (50, 15),
            Self::Jobs => (12 * jobs, 15),
            // Two requests look up each pod, and a third creates it.
            Self::Pods => (10 + 12 * pods, 5 * pods),
            Self::Gates => (10 + 4 * pods, 15),
        }
    }
}

/// Requests of the last second.
#[derive(Debug, Default)]
struct Second {
    times: VecDeque<(Time, usize)>,
    number: usize,
}

impl Second {
    /// Adds some requests. Returns how many there are now.
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

/// Requests that were sent, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    sent: BTreeMap<Kind, Second>,
    failed: BTreeMap<Kind, Second>,
    /// Number of all requests that were ever sent.
    pub(super) all: u64,
}

impl World {
    /// Requests of one kind are sent.
    pub(crate) fn note_requests(&mut self, kind: Kind, number: usize) {
        let now = self.now;
        let requests = &mut self.truth.requests;
        requests.all += number as u64;
        let sent = requests.sent.entry(kind).or_default().add(now, number);
        let (most, _) = kind.limits(self.truth.size);
        if sent > most {
            self.violate(format!(
                "{sent} requests of {kind:?} are sent within a second, {most} are allowed"
            ));
        }
    }

    /// Requests of one kind that were sent together fail: they are lost, refused, or outdated.
    pub(crate) fn note_failed_request(&mut self, kind: Kind) {
        let now = self.now;
        let requests = &mut self.truth.requests;
        let failed = requests.failed.entry(kind).or_default().add(now, 1);
        let (_, most) = kind.limits(self.truth.size);
        if failed > most {
            self.violate(format!(
                "{failed} requests of {kind:?} fail within a second, {most} are allowed"
            ));
        }
    }
}
