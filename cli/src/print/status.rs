//! JobSets as trees.

use jiff::Timestamp;

use super::table::{Cell, columns, plain};
use super::visible::{CELL, MESSAGE, line};
use super::{Paint, Tone, restarts};
use crate::view::status::{ChildJob, LastRestart, ReplicatedJob, View, Worker};
use crate::view::time;

mod standby;

/// Most workers of one Job that are named, if not all are wanted.
const MAX_NAMED: usize = 8;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    /// Show every worker, not only those that are not up.
    pub(crate) every_worker: bool,
    /// Show more columns.
    pub(crate) wide: bool,
}

/// The JobSets, one below the other.
pub(crate) fn status(views: &[View], detail: Detail, now: Timestamp, paint: Paint) -> String {
    let trees: Vec<String> = views.iter().map(|view| one(view, detail, now, paint)).collect();
    trees.join("\n")
}

fn one(view: &View, detail: Detail, now: Timestamp, paint: Paint) -> String {
    let mut head = vec![
        paint.tone(Tone::Strong, &format!("{}/{}", view.namespace, view.name)),
        paint.tone(tone(&view.phase), &view.phase),
    ];
    if view.kind == "Recreate" {
        head.push("restarted by recreation".to_owned());
    } else {
        head.push(format!("generation {}", view.generation));
    }
    head.push(restarts(view.restarts, view.max_restarts));
    if view.recreations > 0 {
        head.push(format!("Jobs recreated {} times", view.recreations));
    }
    if detail.wide {
        head.push(line(&view.kind, CELL));
        head.push(format!("released {}", view.released));
        if let Some(created) = view.created_at {
            head.push(format!("created {} ago", time::ago(created, now)));
        }
    }
    let mut text = format!("{}\n", head.join("  "));
    match &view.last_restart {
        Some(last) => text.push_str(&format!("  last restart: {}\n", last_restart(last, now))),
        None if view.generation == 0 && view.kind != "Recreate" => text.push_str("  never restarted\n"),
        None => {}
    }
    for message in &view.messages {
        text.push_str(&format!("  {}\n", paint.tone(Tone::Warning, message)));
    }
    let last = view.replicated_jobs.len().saturating_sub(1);
    for (index, job) in view.replicated_jobs.iter().enumerate() {
        let branch = Branch::new(index == last);
        text.push_str(&format!(
            "{}{}\n",
            paint.tone(Tone::Faint, branch.here),
            replicated_job(job, paint)
        ));
        child_jobs(job, detail, now, paint, branch.below, &mut text);
    }
    text
}

/// When, how and how fast, then why.
fn last_restart(last: &LastRestart, now: Timestamp) -> String {
    let mut facts = Vec::new();
    if let Some(at) = last.at {
        facts.push(format!("{} ago", time::ago(at, now)));
    }
    if let Some(took) = last.took_ms {
        facts.push(format!("took {}", time::took(took)));
    }
    if let Some(level) = &last.level {
        facts.push(format!("by {}", line(level, CELL)));
    }
    let message = line(&last.message, MESSAGE);
    if facts.is_empty() {
        return message;
    }
    format!("{}: {message}", facts.join(", "))
}

fn replicated_job(job: &ReplicatedJob, paint: Paint) -> String {
    let mut counts = vec![format!("{} of {} Jobs ready", job.ready, job.replicas)];
    for (count, word) in [
        (job.succeeded, "succeeded"),
        (job.failed, "failed"),
        (job.suspended, "suspended"),
    ] {
        if count > 0 {
            counts.push(format!("{count} {word}"));
        }
    }
    let well = job.ready + job.succeeded >= job.replicas && job.failed == 0;
    let tone = if well { Tone::Good } else { Tone::Warning };
    format!(
        "{}  {}",
        paint.tone(Tone::Strong, &job.name),
        paint.tone(tone, &counts.join(", "))
    )
}

fn child_jobs(
    job: &ReplicatedJob,
    detail: Detail,
    now: Timestamp,
    paint: Paint,
    below: &str,
    text: &mut String,
) {
    let last = job.jobs.len().saturating_sub(1);
    for (index, child) in job.jobs.iter().enumerate() {
        let branch = Branch::new(index == last);
        let lead = paint.tone(Tone::Faint, &format!("{below}{}", branch.here));
        let up = format!("{} of {} workers up", child.workers_up, child.workers_expected);
        let state = paint.tone(tone(&child.state), &child.state);
        text.push_str(&format!("{lead}{}  {state}  {up}\n", line(&child.name, CELL)));
        workers(
            child,
            detail,
            now,
            paint,
            &format!("{below}{}", branch.below),
            text,
        );
    }
}

fn workers(job: &ChildJob, detail: Detail, now: Timestamp, paint: Paint, below: &str, text: &mut String) {
    let unwell = job
        .workers
        .iter()
        .filter(|worker| !worker.up && job.state == "Active");
    let shown: Vec<&Worker> = if detail.every_worker {
        job.workers.iter().collect()
    } else {
        unwell.collect()
    };
    let most = if detail.every_worker {
        shown.len()
    } else {
        MAX_NAMED
    };
    let rows: Vec<Vec<Cell>> = shown
        .iter()
        .take(most)
        .map(|worker| cells(worker, detail, now))
        .collect();
    let mut lines = columns(paint, &rows);
    if shown.len() > most {
        lines.push(format!("... and {} more", shown.len() - most));
    }
    let last = lines.len().saturating_sub(1);
    for (index, row) in lines.iter().enumerate() {
        let lead = paint.tone(
            Tone::Faint,
            &format!("{below}{}", Branch::new(index == last).here),
        );
        text.push_str(&format!("{lead}{row}\n"));
    }
}

fn cells(worker: &Worker, detail: Detail, now: Timestamp) -> Vec<Cell> {
    let name = match &worker.container {
        Some(container) => format!("{}/{container}", worker.index),
        None => worker.index.to_string(),
    };
    let optional = |text: &Option<String>| plain(text.clone().unwrap_or_default());
    let mut row = vec![
        plain(name),
        (
            worker.state.clone(),
            Some(if worker.up {
                Tone::Good
            } else {
                tone(&worker.state)
            }),
        ),
        plain(
            worker
                .generation
                .map_or_else(String::new, |generation| format!("generation {generation}")),
        ),
        plain(
            worker
                .since
                .map_or_else(String::new, |since| format!("for {}", time::ago(since, now))),
        ),
        optional(&worker.node),
    ];
    if detail.wide {
        row.push(optional(&worker.pod));
        row.push(plain(format!("({})", worker.source)));
    }
    row.push(plain(standby::line(worker)));
    row
}

/// The tone of a state of a JobSet, Job or worker.
fn tone(state: &str) -> Tone {
    match state {
        "InSync" | "Running" | "Completed" | "Complete" | "Done" | "Active" => Tone::Good,
        "Failed" | "Lost" | "Hung" | "Exited" | "CrashLoopBackOff" | "ImagePullBackOff" | "ErrImagePull" => {
            Tone::Bad
        }
        state if state.starts_with("Exit ") || state.starts_with("Signal ") => Tone::Bad,
        _ => Tone::Warning,
    }
}

struct Branch {
    here: &'static str,
    below: &'static str,
}

impl Branch {
    fn new(last: bool) -> Self {
        if last {
            Self {
                here: "└─ ",
                below: "   ",
            }
        } else {
            Self {
                here: "├─ ",
                below: "│  ",
            }
        }
    }
}
