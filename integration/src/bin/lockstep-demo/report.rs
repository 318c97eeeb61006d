//! The output of the demo.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lockstep_integration::harness::stopwatch;
use serde_json::Value;

use crate::ring::{Restart, WORKERS};

/// The times in an event's timeline, in their usual order.
const MOMENTS: [(&str, &str); 8] = [
    ("failedAt", "the agent in the container reaped the worker"),
    ("detectedAt", "detected: the control plane has the report"),
    ("stopPushedAt", "pushed: every node was sent the stop order"),
    ("stoppedAt", "stopped: no process of the old attempt is left"),
    (
        "writtenAt",
        "written: the new generation is in the JobSet's status",
    ),
    ("parkedAt", "parked: every agent waits at the new generation"),
    ("releasedAt", "released: every node was sent the start order"),
    ("runningAt", "running: every agent has reported its new worker"),
];

/// Prints one restart: the first one in full, others in one line.
pub(crate) fn one(restart: &Restart, number: u32, of: u32) {
    let up = millis(since(restart.killed, restart.ring_up));
    if number > 1 {
        let fresh = millis(restart.fresh);
        println!(
            "restart {number} of {of}: rank {} killed, {fresh} ms, ring up after {up} ms",
            restart.rank
        );
        return;
    }
    println!("rank {} is killed with SIGKILL ({})\n", restart.rank, restart.pod);
    let mut lines: Vec<(Duration, String)> = restart
        .timeline
        .iter()
        .flat_map(|timeline| moments(restart, timeline))
        .collect();
    lines.push((
        restart.fresh,
        format!("seen from outside: {WORKERS} new worker processes"),
    ));
    lines.push((
        since(restart.killed, restart.ring_up),
        format!(
            "seen in the log: the ring is up, at step {} (was at {})",
            restart.step, restart.step_before
        ),
    ));
    lines.sort_by_key(|(at, _)| *at);
    println!("{:>10}  {:>8}", "ms", "+ms");
    println!("{:>10}  {:>8}  SIGKILL", "0.0", "");
    let mut last = Duration::ZERO;
    for (at, what) in lines {
        println!(
            "{:>10}  {:>8}  {what}",
            millis(at),
            format!("+{}", millis(at.saturating_sub(last)))
        );
        last = at;
    }
    println!();
}

fn moments(restart: &Restart, timeline: &Value) -> Vec<(Duration, String)> {
    MOMENTS
        .iter()
        .filter_map(|(key, what)| {
            let nanos = i128::from(timeline[key].as_i64().filter(|nanos| *nanos > 0)?);
            let at = Timestamp::from_nanosecond(nanos).ok()?;
            Some((since(restart.killed, at), (*what).to_owned()))
        })
        .collect()
}

/// Prints both kinds of restart side by side: medians of the times, otherwise the last value.
pub(crate) fn compare(in_place: &[Restart], recreated: &[Restart]) {
    let times = |restarts: &[Restart], time: fn(&Restart) -> Duration| {
        let times: Vec<_> = restarts.iter().map(time).collect();
        format!("{} ms", millis(stopwatch::median(&times)))
    };
    let most = |restarts: &[Restart], count: fn(&Restart) -> usize| {
        let most = restarts.iter().map(count).max().unwrap_or_default();
        format!("{most} of {WORKERS}")
    };
    let step = |restarts: &[Restart]| {
        let last = restarts.last();
        last.map_or_else(String::new, |last| {
            format!("{} (was at {})", last.step, last.step_before)
        })
    };
    println!(
        "\n=== One worker of {WORKERS} killed; the median of {} and of {}\n",
        in_place.len(),
        recreated.len()
    );
    row("", "in place", "Recreate");
    row(
        "until 4 new workers run",
        &times(in_place, |restart| restart.fresh),
        &times(recreated, |restart| restart.fresh),
    );
    let up = |restart: &Restart| since(restart.killed, restart.ring_up);
    row(
        "until the ring is up",
        &times(in_place, up),
        &times(recreated, up),
    );
    row(
        "new pods",
        &most(in_place, |restart| restart.new_pods),
        &most(recreated, |restart| restart.new_pods),
    );
    row(
        "new containers",
        &most(in_place, |restart| restart.new_containers),
        &most(recreated, |restart| restart.new_containers),
    );
    row("goes on at step", &step(in_place), &step(recreated));
}

fn row(what: &str, in_place: &str, recreated: &str) {
    println!("{what:<26}{in_place:>20}{recreated:>20}");
}

/// The time from `start` to `end`; none if `end` was first, by the clocks or the order of the log.
fn since(start: Timestamp, end: Timestamp) -> Duration {
    Duration::try_from(end.duration_since(start)).unwrap_or_default()
}

fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}
