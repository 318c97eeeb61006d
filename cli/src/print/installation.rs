//! The installation: verdicts, one per line with a hint below, and nodes as a table.

use jiff::Timestamp;

use super::table::{Cell, plain, table};
use super::visible::{MESSAGE, line};
use super::{Paint, Tone};
use crate::view::check::{Level, Verdict};
use crate::view::nodes::{AccessState, Connection, Nri, RestartLevel, Row, RuntimeAccess};
use crate::view::time;

/// The verdicts by section, with a summary at the end.
pub(crate) fn check(verdicts: &[Verdict], paint: Paint) -> String {
    let mut text = String::new();
    let mut section = "";
    for verdict in verdicts {
        if verdict.section != section {
            if !section.is_empty() {
                text.push('\n');
            }
            section = verdict.section;
            text.push_str(&format!("{}\n", paint.tone(Tone::Strong, section)));
        }
        let (mark, tone) = match verdict.level {
            Level::Ok => ("✓", Tone::Good),
            Level::Warning => ("‼", Tone::Warning),
            Level::Error => ("×", Tone::Bad),
        };
        let finding = line(&verdict.text, MESSAGE);
        text.push_str(&format!("  {} {finding}\n", paint.tone(tone, mark)));
        if let Some(hint) = &verdict.hint {
            text.push_str(&format!(
                "    {}\n",
                paint.tone(Tone::Faint, &format!("→ {hint}"))
            ));
        }
    }
    text.push_str(&format!("\n{}\n", summary(verdicts, paint)));
    text
}

fn summary(verdicts: &[Verdict], paint: Paint) -> String {
    let count = |level: Level| verdicts.iter().filter(|verdict| verdict.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let tone = match (errors, warnings) {
        (0, 0) => return paint.tone(Tone::Good, "All is well."),
        (0, _) => Tone::Warning,
        _ => Tone::Bad,
    };
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    paint.tone(
        tone,
        &format!("{}, {}.", counted(errors, "error"), counted(warnings, "warning")),
    )
}

/// One row for each node.
pub(crate) fn nodes(rows: &[Row], wide: bool, now: Timestamp, paint: Paint) -> String {
    if rows.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut heads = vec![
        "NODE", "DAEMON", "READY", "RESTARTS", "AGE", "IMAGE", "RUNTIME", "LEVEL", "CRI", "NRI", "AGENTS",
    ];
    if wide {
        heads.extend(["POD", "VERSION", "PROTOCOL", "WHY AWAY"]);
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
    let mut state = row.state.clone().unwrap_or_else(|| "none".to_owned());
    let silent = row.pod.is_some() && row.connected == Connection::Missing;
    if silent {
        state.push_str(" (not connected)");
    }
    let tone = if row.ready && !silent {
        Tone::Good
    } else {
        Tone::Bad
    };
    let image = row.image.as_deref().unwrap_or_default();
    // The registry is shown only in the wide form.
    let image = if wide {
        image
    } else {
        image.rsplit('/').next().unwrap_or_default()
    };
    let agents = match (row.workers, row.workers_linked) {
        (Some(all), Some(linked)) => (
            format!("{linked} of {all} reporting"),
            Some(if linked < all { Tone::Warning } else { Tone::Good }),
        ),
        _ => plain("unknown"),
    };
    let mut cells = vec![
        (node, (!row.node_ready).then_some(Tone::Bad)),
        (state, Some(tone)),
        if row.ready {
            ("yes".to_owned(), Some(Tone::Good))
        } else {
            ("no".to_owned(), Some(Tone::Bad))
        },
        (
            row.restarts.to_string(),
            (row.restarts > 0).then_some(Tone::Warning),
        ),
        plain(row.since.map_or_else(String::new, |since| time::ago(since, now))),
        plain(image),
        plain(row.runtime.clone()),
        level(row.level),
        access(row.cri_health.as_ref(), now).unwrap_or_else(|| plain("unknown")),
        access(row.nri_health.as_ref(), now).unwrap_or_else(|| by_version(row.nri)),
        agents,
    ];
    if wide {
        cells.push(plain(row.pod.clone().unwrap_or_default()));
        let unknown = || "unknown".to_owned();
        cells.push(plain(row.daemon_version.clone().unwrap_or_else(unknown)));
        cells.push(plain(
            row.protocol.map_or_else(unknown, |version| version.to_string()),
        ));
        cells.push(plain(why_away(row)));
    }
    cells
}

fn level(of: Option<RestartLevel>) -> Cell {
    let tone = match of {
        Some(RestartLevel::Process) => Tone::Good,
        Some(RestartLevel::Container) | None => Tone::Warning,
        Some(RestartLevel::Pod) => Tone::Bad,
    };
    (of.map_or("unknown", RestartLevel::words).to_owned(), Some(tone))
}

/// Access to the container runtime, as the daemon reports it.
fn access(of: Option<&RuntimeAccess>, now: Timestamp) -> Option<Cell> {
    let of = of?;
    let tone = match of.state {
        AccessState::Well => Tone::Good,
        AccessState::Away => Tone::Bad,
        AccessState::Unknown => Tone::Warning,
    };
    Some((of.words(now), Some(tone)))
}

/// NRI as the runtime's version implies it, for a daemon that reports nothing.
fn by_version(nri: Nri) -> Cell {
    let tone = match nri {
        Nri::OnByDefault => None,
        Nri::TooOld => Some(Tone::Bad),
        Nri::Unknown => Some(Tone::Warning),
    };
    (nri.words().to_owned(), tone)
}

fn why_away(row: &Row) -> String {
    let both = [("CRI", &row.cri_health), ("NRI", &row.nri_health)];
    let away = both.into_iter().filter_map(|(name, access)| {
        let access = access
            .as_ref()
            .filter(|access| access.state == AccessState::Away)?;
        Some(format!("{name}: {}", access.detail))
    });
    away.collect::<Vec<_>>().join("; ")
}
