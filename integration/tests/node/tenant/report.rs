//! The result of the attack: a table of its phases, a file with the same, and the verdict.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::harness::stopwatch;
use serde_json::{Value, json};

use super::canary;
use super::ledger::{Entries, Period, Timed};

/// Where the file is.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/tenant.json");
const MIB: u64 = 1024;
/// What a restart of the neighbour may take.
const RESTART: Duration = Duration::from_secs(30);
/// What the control plane's part of a canary may take. The rest is up to Kubernetes: kubelets take
/// minutes if one tenant's pods fail and are made again as fast as they can be.
const OURS: Duration = Duration::from_secs(30);
/// How much memory the objects of one namespace take in the control plane at most, as
/// docs/limitations.md says, in KiB. What the control plane takes without them is added.
const NAMESPACE: u64 = 620 * MIB;
/// What a daemon may take: half of the chart's limit.
const DAEMON: u64 = 128 * MIB;
/// What a program may log in a minute, in bytes.
const LOG: u64 = 1_000_000;
const MINUTE: Duration = Duration::from_secs(60);

/// All that was seen, by phase.
pub(super) struct Report {
    entries: Entries,
    rows: Vec<Row>,
}

/// What was seen in a phase.
struct Row {
    period: Period,
    lasted: Duration,
    restarts: Vec<Duration>,
    canaries: Vec<Duration>,
    canaries_ours: Vec<Duration>,
    /// By program: the most memory in KiB, and the most that it logged within a minute, in bytes.
    peaks: Vec<u64>,
    logs: Vec<u64>,
}

impl Report {
    /// Sorts what was seen by phase. The last phase ended at `end`.
    pub(super) fn new(entries: Entries, end: Duration) -> Self {
        let ends = entries
            .periods
            .iter()
            .skip(1)
            .map(|period| period.from)
            .chain([end]);
        let rows = entries.periods.iter().zip(ends);
        let rows = rows.map(|(period, to)| row(&entries, period, to)).collect();
        Self { entries, rows }
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        print!(
            "     {:<16} {:>5} {:>5} {:>8} {:>8} {:>8} {:>7} {:>5}",
            "phase", "s", "kills", "median", "p90", "max", "canary", "ours"
        );
        for part in &self.entries.parts {
            print!(" {:>13} {:>7}", format!("{part} MiB"), "kB/min");
        }
        println!(
            " {:>8} {:>7} {:>7} {:>6} {:>8}",
            "requests", "taken", "refused", "lost", "clean"
        );
        for row in &self.rows {
            row.print();
        }
        let all: Vec<Duration> = self.entries.restarts.iter().map(|timed| timed.took).collect();
        println!(
            "     {} kills, {:?} restarts: {:.0?} in the median, {:.0?} at the 90th percentile, {:.0?} at most; {} canaries",
            self.entries.kills,
            self.entries.counted,
            stopwatch::median(&all),
            stopwatch::p90(&all),
            all.iter().max().copied().unwrap_or_default(),
            self.entries.canaries.len(),
        );
    }

    /// Writes the file.
    pub(super) fn write(&self) -> Result<()> {
        let parts = &self.entries.parts;
        let value = json!({
            "kills": self.entries.kills,
            "restarts": self.entries.counted,
            "complaints": self.entries.complaints,
            "phases": self.rows.iter().map(|row| row.json(parts)).collect::<Vec<Value>>(),
        });
        let path = Path::new(FILE);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, serde_json::to_string_pretty(&value)?)?;
        println!("     written to {}", path.display());
        Ok(())
    }

    /// Fails unless neighbours and operators saw nothing but some delay.
    pub(super) fn judge(&self) -> Result<()> {
        let entries = &self.entries;
        let mut wrong = entries.complaints.clone();
        let mut expect = |is_well: bool, what: String| {
            if !is_well {
                wrong.push(what);
            }
        };
        let (kills, counted) = (entries.kills, entries.counted);
        expect(
            counted == Some(kills),
            format!("{kills} kills made {counted:?} restarts"),
        );
        expect(!entries.canaries.is_empty(), "no canary has completed".to_owned());
        // The control plane is the first part. What it takes at first is without the attacker's.
        let first = entries.samples.iter().find(|sample| sample.part == 0);
        let base = first.map_or(0, |sample| sample.resident);
        for row in &self.rows {
            let name = row.period.name;
            for (times, most, of) in [
                (&row.restarts, RESTART, "restart"),
                (&row.canaries, canary::PATIENCE, "canary"),
                (&row.canaries_ours, OURS, "canary's part of the control plane"),
            ] {
                let longest = times.iter().max().copied().unwrap_or_default();
                expect(longest <= most, format!("{name}: a {of} took {longest:.1?}"));
            }
            for (number, part) in entries.parts.iter().enumerate() {
                let (peak, log) = (row.peaks[number], row.logs[number]);
                let most = if number == 0 { NAMESPACE + base } else { DAEMON };
                expect(
                    peak <= most,
                    format!("{name}: {part} took {} MiB, more than {}", peak / MIB, most / MIB),
                );
                expect(
                    log <= LOG,
                    format!("{name}: {part} logged {log} bytes in a minute"),
                );
            }
        }
        ensure!(
            wrong.is_empty(),
            "the attack had an effect:\n{}",
            wrong.join("\n")
        );
        Ok(())
    }
}

fn row(entries: &Entries, period: &Period, to: Duration) -> Row {
    let within = |at: Duration| (period.from..to).contains(&at);
    let times = |all: &[Timed]| {
        let here = all.iter().filter(|timed| within(timed.at));
        here.map(|timed| timed.took).collect()
    };
    let of = |part: usize| entries.samples.iter().filter(move |sample| sample.part == part);
    let peak = |part: usize| {
        let here = of(part).filter(|sample| within(sample.at));
        here.map(|sample| sample.peak.max(sample.resident))
            .max()
            .unwrap_or(0)
    };
    let log = |part: usize| {
        let grown = of(part).filter(|sample| within(sample.at)).map(|last| {
            let earlier = of(part).filter(|sample| sample.at + MINUTE >= last.at);
            let first = earlier.map(|sample| sample.logged).min();
            last.logged - first.unwrap_or(last.logged)
        });
        grown.max().unwrap_or(0)
    };
    let parts = 0..entries.parts.len();
    Row {
        period: period.clone(),
        lasted: to.saturating_sub(period.from),
        restarts: times(&entries.restarts),
        canaries: times(&entries.canaries),
        canaries_ours: times(&entries.canaries_ours),
        peaks: parts.clone().map(peak).collect(),
        logs: parts.map(log).collect(),
    }
}

impl Row {
    fn print(&self) {
        let tally = &self.period.tally;
        let longest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
        let millis = |time: Duration| format!("{} ms", time.as_millis());
        print!(
            "     {:<16} {:>5} {:>5} {:>8} {:>8} {:>8} {:>7} {:>5}",
            self.period.name,
            self.lasted.as_secs(),
            self.restarts.len(),
            millis(stopwatch::median(&self.restarts)),
            millis(stopwatch::p90(&self.restarts)),
            millis(longest(&self.restarts)),
            format!("{} s", longest(&self.canaries).as_secs()),
            format!("{} s", longest(&self.canaries_ours).as_secs()),
        );
        for (peak, log) in self.peaks.iter().zip(&self.logs) {
            print!(" {:>13.1} {:>7}", *peak as f64 / MIB as f64, log / 1000);
        }
        let clean = self.period.cleaned;
        let clean = clean.map_or("not".to_owned(), |took| format!("{} s", took.as_secs()));
        println!(
            " {:>8} {:>7} {:>7} {:>6} {:>8}",
            tally.requests, tally.taken, tally.refused, tally.lost, clean
        );
    }

    fn json(&self, parts: &[String]) -> Value {
        let tally = &self.period.tally;
        let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect::<Vec<f64>>();
        let programs: Vec<Value> = parts
            .iter()
            .zip(self.peaks.iter().zip(&self.logs))
            .map(|(part, (peak, log))| json!({"name": part, "peakKiB": peak, "logBytesOfWorstMinute": log}))
            .collect();
        json!({
            "name": self.period.name,
            "seconds": self.lasted.as_secs_f64(),
            "kills": self.restarts.len(),
            "medianSeconds": stopwatch::median(&self.restarts).as_secs_f64(),
            "p90Seconds": stopwatch::p90(&self.restarts).as_secs_f64(),
            "restartSeconds": seconds(&self.restarts),
            "canarySeconds": seconds(&self.canaries),
            "canaryOursSeconds": seconds(&self.canaries_ours),
            "programs": programs,
            "requests": {
                "sent": tally.requests, "taken": tally.taken, "refused": tally.refused, "lost": tally.lost,
            },
            "cleanedInSeconds": self.period.cleaned.map(|took| took.as_secs_f64()),
        })
    }
}
