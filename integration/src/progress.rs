//! Progress on standard error: what is being done, and for how long it has been going on.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Prints lines that carry the time since it was made.
#[derive(Debug, Clone)]
pub struct Progress {
    start: Instant,
    quiet: bool,
}

impl Progress {
    /// A progress that prints, counting from now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            quiet: false,
        }
    }

    /// A progress that prints nothing.
    pub fn quiet() -> Self {
        Self {
            start: Instant::now(),
            quiet: true,
        }
    }

    /// Prints one line.
    pub fn say(&self, what: impl Display) {
        if !self.quiet {
            eprintln!("[{:>6.1} s] {what}", self.elapsed().as_secs_f64());
        }
    }

    /// The time since this was made.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
