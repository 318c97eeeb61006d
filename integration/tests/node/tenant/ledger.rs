//! What was seen during the attack. All parts of the case write into it, from their own tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::attacker::Tally;
use super::report::Report;

/// Complaints of which the text is kept: the first ones say what is wrong.
const COMPLAINTS: usize = 200;

/// A period of the attack.
#[derive(Debug, Clone)]
pub(super) struct Period {
    /// The name of the phase.
    pub(super) name: &'static str,
    /// When it began.
    pub(super) from: Duration,
    /// What the attacker has asked for.
    pub(super) tally: Tally,
    /// How long the removal of its objects took. `None` if some are left.
    pub(super) cleaned: Option<Duration>,
}

/// Something that took a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    /// When it began.
    pub(super) at: Duration,
    /// How long it took.
    pub(super) took: Duration,
}

/// What a program of the product took at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// When it was taken.
    pub(super) at: Duration,
    /// The number of the program in [`Entries::parts`].
    pub(super) part: usize,
    /// Resident memory in KiB, and the most of it since the phase began.
    pub(super) resident: u64,
    pub(super) peak: u64,
    /// What it has logged since the case began, in bytes.
    pub(super) logged: u64,
}

/// All that was seen, in the order of time.
#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    /// The names of the product's programs.
    pub(super) parts: Vec<String>,
    pub(super) periods: Vec<Period>,
    /// From the kill of a worker until all run again.
    pub(super) restarts: Vec<Timed>,
    /// Kills, and the restarts that the neighbour's status has in the end.
    pub(super) kills: u64,
    pub(super) counted: Option<u64>,
    /// From the creation of a canary until it has completed.
    pub(super) canaries: Vec<Timed>,
    /// The control plane's part of that.
    pub(super) canaries_ours: Vec<Timed>,
    pub(super) samples: Vec<Sample>,
    /// What must not happen, and did.
    pub(super) complaints: Vec<String>,
}

/// [`Entries`] that grow.
pub(super) struct Ledger {
    start: Instant,
    ended: AtomicBool,
    entries: Mutex<Entries>,
}

impl Ledger {
    /// An empty one, whose time begins now.
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            ended: AtomicBool::new(false),
            entries: Mutex::default(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the case began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends the neighbour, the canaries and the monitor.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// True until [`Self::end`].
    pub(super) fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Names the product's programs.
    pub(super) fn parts(&self, parts: Vec<String>) {
        self.entries().parts = parts;
    }

    /// A phase begins.
    pub(super) fn begin(&self, name: &'static str) {
        let period = Period {
            name,
            from: self.elapsed(),
            tally: Tally::default(),
            cleaned: None,
        };
        self.entries().periods.push(period);
    }

    /// The attack of the phase has ended.
    pub(super) fn attacked(&self, tally: Tally) {
        if let Some(period) = self.entries().periods.last_mut() {
            period.tally = tally;
        }
    }

    /// The objects of the phase are gone after this time, or stay.
    pub(super) fn cleaned(&self, took: Option<Duration>) {
        if let Some(period) = self.entries().periods.last_mut() {
            period.cleaned = took;
        }
    }

    /// A worker was killed, and all run again.
    pub(super) fn restarted(&self, timed: Timed) {
        self.entries().restarts.push(timed);
    }

    /// The neighbour's restarts and kills in the end.
    pub(super) fn settle(&self, kills: u64, counted: Option<u64>) {
        let mut entries = self.entries();
        (entries.kills, entries.counted) = (kills, counted);
    }

    /// A canary has completed, after this time and this part of the control plane.
    pub(super) fn completed(&self, timed: Timed, ours: Timed) {
        let mut entries = self.entries();
        entries.canaries.push(timed);
        entries.canaries_ours.push(ours);
    }

    /// The monitor has looked at a program.
    pub(super) fn sample(&self, sample: Sample) {
        self.entries().samples.push(sample);
    }

    /// Something happened that must not.
    pub(super) fn complain(&self, what: String) {
        let at = self.elapsed().as_secs();
        let mut entries = self.entries();
        let phase = entries.periods.last().map_or("before", |period| period.name);
        let line = format!("{at} s, {phase}: {what}");
        println!("     {line}");
        if entries.complaints.len() < COMPLAINTS {
            entries.complaints.push(line);
        }
    }

    /// All of it until now.
    pub(super) fn report(&self) -> Report {
        Report::new(self.entries().clone(), self.elapsed())
    }
}
