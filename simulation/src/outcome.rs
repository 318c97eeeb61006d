//! What comes of a run, and a line for everything that happened if somebody is to read it.

use crate::time::{Time, show};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What must not have happened, if anything.
    pub violation: Option<String>,
    /// Events that happened.
    pub events: u64,
    /// Restarts that began.
    pub restarts: u32,
    /// Those of them that were worker restarts.
    pub worker_restarts: u32,
    /// Those of these that were asked for.
    pub requested: u32,
    /// Containers that were stopped for them.
    pub stops: u32,
    /// Those of them that had no agent, and should have had one.
    pub without_agent: u32,
    /// What happened, line by line, if the trace was kept.
    pub trace: Vec<String>,
}

/// Collects lines, or nothing.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// A trace that is kept.
    #[must_use]
    pub(crate) fn kept() -> Self {
        Self {
            lines: Some(Vec::new()),
        }
    }

    /// Adds a line. It is not formatted if nobody reads it.
    pub(crate) fn say(&mut self, now: Time, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{} {}", show(now), line()));
        }
    }

    /// All lines.
    #[must_use]
    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
