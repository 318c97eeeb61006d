//! What happened, line by line, where somebody wants to read it.

use crate::time::{Time, show};

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

    /// Adds a line; it is not even put together where nobody reads it.
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
