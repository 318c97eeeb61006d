//! Nodes as a table.

use jiff::Timestamp;

use super::table::{Cell, plain, table};
use super::{Paint, Tone};
use crate::view::nodes::{Nri, Row};
use crate::view::time;

/// One row for each node.
pub(crate) fn nodes(rows: &[Row], wide: bool, now: Timestamp, paint: Paint) -> String {
    if rows.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut heads = vec![
        "NODE", "DAEMON", "READY", "RESTARTS", "AGE", "IMAGE", "RUNTIME", "NRI", "AGENTS",
    ];
    if wide {
        heads.push("POD");
    }
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| cells(row, wide, now)).collect();
    table(paint, &heads, &rows)
}

fn cells(row: &Row, wide: bool, now: Timestamp) -> Vec<Cell> {
    let mut node = row.node.clone();
    if !row.node_ready {
        node.push_str(" (not ready)");
    }
    if row.unschedulable {
        node.push_str(" (cordoned)");
    }
    let state = row.state.clone().unwrap_or_else(|| "none".to_owned());
    let tone = if row.ready { Tone::Good } else { Tone::Bad };
    let image = row.image.as_deref().unwrap_or_default();
    // The registry is of no interest but to those who ask for more.
    let image = if wide {
        image
    } else {
        image.rsplit('/').next().unwrap_or_default()
    };
    let nri = match row.nri {
        Nri::OnByDefault => None,
        Nri::OffByDefault | Nri::None => Some(Tone::Bad),
        Nri::Unknown => Some(Tone::Warning),
    };
    let agents = match (row.workers, row.workers_linked) {
        (Some(all), Some(linked)) => (
            format!("{linked} of {all} heard"),
            Some(if linked < all { Tone::Warning } else { Tone::Good }),
        ),
        _ => plain("unknown"),
    };
    let mut cells = vec![
        (node, (!row.node_ready).then_some(Tone::Bad)),
        (state, Some(tone)),
        (if row.ready { "yes" } else { "no" }.to_owned(), Some(tone)),
        (
            row.restarts.to_string(),
            (row.restarts > 0).then_some(Tone::Warning),
        ),
        plain(row.since.map_or_else(String::new, |since| time::ago(since, now))),
        plain(image),
        plain(row.runtime.clone()),
        (row.nri.words().to_owned(), nri),
        agents,
    ];
    if wide {
        cells.push(plain(row.pod.clone().unwrap_or_default()));
    }
    cells
}
