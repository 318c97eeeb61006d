//! The plan of all rounds, drawn from a seed before the first one.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::fault::{Fault, Struck};

/// A round: one worker dies, and something else fails around that time.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// Counted from 1.
    pub(super) number: usize,
    /// Which group.
    pub(super) group: usize,
    /// Which of its workers is killed.
    pub(super) victim: usize,
    pub(super) blows: Vec<Blow>,
}

/// A fault and its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blow {
    pub(super) fault: Fault,
    /// When it strikes, in milliseconds after the worker is killed. Negative: before.
    pub(super) at: i64,
    /// How long it lasts, unless it is over at once.
    pub(super) lasting: Duration,
    /// The worker whose pod or node the fault strikes, if it strikes one.
    pub(super) target: usize,
}

/// The rounds of a seed. Every fault occurs before one occurs again; a quarter of the rounds have a
/// second one.
pub(super) fn rounds(seed: u64, count: usize, groups: usize, workers: usize) -> Vec<Round> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut deck = Vec::new();
    let mut rounds = Vec::new();
    for number in 1..=count {
        let mut faults: Vec<Fault> = Vec::new();
        if deck.is_empty() {
            deck = Fault::ALL.to_vec();
            deck.shuffle(&mut random);
        }
        faults.extend(deck.pop());
        if random.random_bool(0.25) {
            let other = Fault::ALL[random.random_range(0..Fault::ALL.len())];
            if faults.iter().all(|fault| go_together(*fault, other)) {
                faults.push(other);
            }
        }
        rounds.push(Round {
            number,
            group: random.random_range(0..groups),
            victim: random.random_range(0..workers),
            blows: faults
                .into_iter()
                .map(|fault| blow(fault, workers, &mut random))
                .collect(),
        });
    }
    rounds
}

/// Two faults of the same program would be one, or none. Also, containerd creates a container
/// without an agent if the node daemon is away or does not answer in time. Such a container is
/// stopped again, and the kubelet delays one that has ended before.
fn go_together(one: Fault, other: Fault) -> bool {
    let unasked = |new: Fault, away: Fault| {
        new == Fault::KillAgent && matches!(away.strikes(), Struck::NodeDaemon | Struck::Containerd)
    };
    one.strikes() != other.strikes() && !unasked(one, other) && !unasked(other, one)
}

fn blow(fault: Fault, workers: usize, random: &mut StdRng) -> Blow {
    Blow {
        fault,
        // An undisturbed restart takes some 20 to 90 ms.
        at: match random.random_range(0..4) {
            0 => random.random_range(-1000..0),
            1 | 2 => random.random_range(0..80),
            _ => random.random_range(80..600),
        },
        lasting: Duration::from_millis(random.random_range(300..2000)),
        target: random.random_range(0..workers),
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {}: worker {} of group {} killed",
            self.number, self.victim, self.group
        )?;
        for blow in &self.blows {
            write!(f, ", {:?} at {:+} ms", blow.fault, blow.at)?;
            if blow.fault.lasts() {
                write!(f, " for {} ms", blow.lasting.as_millis())?;
            }
            if blow.fault.is_somewhere() {
                write!(f, " of worker {}", blow.target)?;
            }
        }
        Ok(())
    }
}
