//! One restart as bars in the terminal.

use super::table::{Cell, plain, table};
use super::visible::{CELL, MESSAGE, line};
use super::{Paint, Tone};
use crate::view::time;
use crate::view::timeline::{Span, Timeline};

/// Columns of the longest bar.
const WIDTH: f64 = 40.0;

/// The duration of the restart, and one bar for each phase, all on one scale.
pub(crate) fn timeline(timeline: &Timeline, paint: Paint) -> String {
    let name = format!("{}/{}", timeline.namespace, timeline.name);
    let mut text = format!("{}  {}\n", paint.tone(Tone::Strong, &name), facts(timeline));
    text.push_str(&format!("  {}\n", line(&timeline.cause, MESSAGE)));
    let rows: Vec<Vec<Cell>> = timeline
        .phases
        .iter()
        .map(|span| row(span, timeline.scale_ms()))
        .collect();
    text.push_str(&table(paint, &["PHASE", "", "FROM", "TOOK", "WHAT"], &rows));
    text
}

/// The restart in one line, without the cause.
pub(super) fn facts(timeline: &Timeline) -> String {
    let mut facts = vec![format!("took {}", time::took(timeline.took_ms))];
    if let Some(generation) = timeline.generation {
        facts.insert(0, format!("generation {generation}"));
    }
    if let Some(level) = &timeline.level {
        facts.push(format!("by {}", line(level, CELL)));
    }
    if let Some(workers) = timeline.workers {
        let plural = if workers == 1 { "" } else { "s" };
        facts.push(format!("{workers} worker{plural}"));
    }
    if let Some(replaced) = timeline.replaced_pods.filter(|replaced| *replaced > 0) {
        facts.push(format!("{replaced} in a new pod"));
    }
    if let Some(from) = timeline.from_standbys.filter(|from| *from > 0) {
        let plural = if from == 1 { "a standby" } else { "standbys" };
        let ahead = f64::from(timeline.ahead_ms.unwrap_or_default());
        facts.push(format!("{from} from {plural} ({} ahead)", time::took(ahead)));
    }
    if let Some(at) = timeline.failed_at {
        facts.push(format!("failure at {at:.3}"));
    }
    facts.join("  ")
}

fn row(span: &Span, whole: f64) -> Vec<Cell> {
    vec![
        plain(span.phase),
        (bar(span, whole), Some(Tone::Good)),
        plain(format!("{:.1}", span.from_ms)),
        plain(time::took(span.took_ms())),
        plain(span.what),
    ]
}

/// The bar of a phase at its place on the scale, at least one column wide.
fn bar(span: &Span, whole: f64) -> String {
    let column = |millis: f64| columns(if whole > 0.0 { millis / whole * WIDTH } else { 0.0 });
    let last = columns(WIDTH) - 1;
    let begin = column(span.from_ms).min(last);
    let end = column(span.to_ms).clamp(begin + 1, last + 1);
    format!("{}{}", " ".repeat(begin), "█".repeat(end - begin))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the width, and as saturates"
)]
fn columns(columns: f64) -> usize {
    columns.round().clamp(0.0, WIDTH) as usize
}
