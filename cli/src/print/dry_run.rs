//! A dry run as text.

use super::table::{Cell, plain, table};
use super::visible::{CELL, MESSAGE, line};
use super::{Paint, Tone};
use crate::view::dry_run::{DryRun, Effect, Row};

/// What a restart would do, then one row for each worker.
pub(crate) fn dry_run(view: &DryRun, paint: Paint) -> String {
    let [namespace, name, level] = [&view.namespace, &view.name, &view.level].map(|text| line(text, CELL));
    let message = line(&view.message, MESSAGE);
    let generation = view.generation.unwrap_or_default();
    let stopped = view.workers.iter().filter(|row| row.stopped).count();
    let all = view.workers.len();
    let mut text = match view.effect {
        Effect::Nothing => return format!("{namespace}/{name}: nothing would be done: {message}\n"),
        Effect::Unknown => format!("{namespace}/{name}: {message}\n"),
        Effect::InPlace => format!(
            "{namespace}/{name}: {stopped} of {all} workers would be restarted in place, by {level}, at generation {generation}\n"
        ),
        Effect::Recreate => {
            format!("{namespace}/{name}: all Jobs would be recreated at generation {generation}: {message}\n")
        }
    };
    let rows: Vec<Vec<Cell>> = view.workers.iter().map(cells).collect();
    text.push_str(&table(paint, &["WORKER", "WOULD BE", "POD", "NODE"], &rows));
    text
}

fn cells(row: &Row) -> Vec<Cell> {
    let fate = if row.stopped {
        ("stopped".to_owned(), Some(Tone::Warning))
    } else {
        plain(format!("left unchanged: {}", row.because))
    };
    vec![
        plain(row.worker.clone()),
        fate,
        plain(row.pod.clone()),
        plain(row.node.clone()),
    ]
}
