//! A history as a table.

use jiff::Timestamp;

use super::table::{Cell, plain, table};
use super::{Paint, Tone, restarts};
use crate::view::history::{Entry, History, Phases};
use crate::view::time;

/// The phase columns of the wide table.
const PHASES: [&str; 6] = ["DETECTED", "STOPPED", "WRITTEN", "PARKED", "RELEASED", "RUNNING"];

/// The restarts, the oldest first.
pub(crate) fn history(history: &History, wide: bool, now: Timestamp, paint: Paint) -> String {
    let name = format!("{}/{}", history.namespace, history.name);
    let mut text = format!(
        "{}  generation {}  {}\n",
        paint.tone(Tone::Strong, &name),
        history.generation,
        restarts(history.restarts, history.max_restarts)
    );
    if history.entries.is_empty() {
        text.push_str(if history.generation == 0 {
            "never restarted\n"
        } else {
            "its restarts are no longer known\n"
        });
        return text;
    }
    let mut heads = vec!["WHEN", "WHAT", "GENERATION", "BY", "TOOK", "WORKERS"];
    if wide {
        heads.extend(PHASES);
    }
    heads.push("WHY");
    let rows: Vec<Vec<Cell>> = history
        .entries
        .iter()
        .map(|entry| row(entry, wide, now))
        .collect();
    text.push_str(&table(paint, &heads, &rows));
    let reported = history
        .entries
        .iter()
        .filter(|entry| entry.took_ms.is_some())
        .count();
    let all = usize::try_from(history.generation).unwrap_or(usize::MAX);
    if reported < all {
        text.push_str(&format!(
            "generation {all}, but events of {reported} restarts: a suspension takes a generation too, and the API server keeps events for an hour \
            by default\n"
        ));
    }
    text
}

fn row(entry: &Entry, wide: bool, now: Timestamp) -> Vec<Cell> {
    let number = |number: Option<u64>| plain(number.map_or_else(String::new, |number| number.to_string()));
    let workers = match (entry.workers, entry.replaced_pods) {
        (Some(workers), Some(replaced)) if replaced > 0 => format!("{workers} ({replaced} in a new pod)"),
        (Some(workers), _) => workers.to_string(),
        (None, _) => String::new(),
    };
    let tone = match entry.what.as_str() {
        "RestartedInPlace" => Tone::Good,
        "ReachedMaxRestarts" | "RestartBlocked" => Tone::Bad,
        _ => Tone::Warning,
    };
    let what = match &entry.reporter {
        Some(reporter) => format!("{} (reported by {reporter})", entry.what),
        None => entry.what.clone(),
    };
    let mut row = vec![
        plain(entry.at.map_or_else(
            || "unknown".to_owned(),
            |at| format!("{} ago", time::ago(at, now)),
        )),
        (what, Some(tone)),
        number(entry.generation),
        plain(entry.level.clone().unwrap_or_default()),
        plain(entry.took_ms.map_or_else(String::new, time::took)),
        plain(workers),
    ];
    if wide {
        row.extend(
            phases(entry.phases.as_ref())
                .map(|phase| plain(phase.map_or_else(String::new, |millis| format!("{millis:.1}")))),
        );
    }
    row.push(plain(entry.cause.clone()));
    row
}

fn phases(phases: Option<&Phases>) -> [Option<f64>; 6] {
    let Some(phases) = phases else { return [None; 6] };
    [
        phases.detected,
        phases.stopped,
        phases.written,
        phases.parked,
        phases.released,
        phases.running,
    ]
}
