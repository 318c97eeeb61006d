//! Columns of text.

use super::visible::{self, CELL, MESSAGE};
use super::{Paint, Tone};

/// A piece of text, with its tone.
pub(super) type Cell = (String, Option<Tone>);

/// Text without a tone.
pub(super) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), None)
}

/// Rows below their heads. Columns are as wide as their cells, and empty columns are left out. The
/// last column is not padded.
pub(super) fn table(paint: Paint, heads: &[&str], rows: &[Vec<Cell>]) -> String {
    let head: Vec<Cell> = heads
        .iter()
        .map(|head| (head.to_string(), Some(Tone::Faint)))
        .collect();
    let all: Vec<&Vec<Cell>> = std::iter::once(&head).chain(rows).collect();
    lines(paint, &all)
}

/// Rows without heads.
pub(super) fn columns(paint: Paint, rows: &[Vec<Cell>]) -> Vec<String> {
    let all: Vec<&Vec<Cell>> = rows.iter().collect();
    lines(paint, &all).lines().map(str::to_owned).collect()
}

fn lines(paint: Paint, rows: &[&Vec<Cell>]) -> String {
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| shown(row)).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        let mut owed = 0;
        for ((cell, tone), width) in row.iter().zip(&widths) {
            if *width == 0 {
                continue;
            }
            line.push_str(&" ".repeat(owed));
            line.push_str(&tone.map_or_else(|| cell.clone(), |tone| paint.tone(tone, cell)));
            owed = width - cell.chars().count() + 2;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The cells with text escaped and cut off. The last one may be longer, since no column follows it.
fn shown(row: &[Cell]) -> Vec<Cell> {
    let last = row.len().saturating_sub(1);
    row.iter()
        .enumerate()
        .map(|(column, (text, tone))| {
            let most = if column == last { MESSAGE } else { CELL };
            (visible::line(text, most), *tone)
        })
        .collect()
}
