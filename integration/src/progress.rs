//! Progress on standard error, with the elapsed time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Prints lines with the time since it was created.
#[derive(Debug, Clone)]
pub struct Progress {
    start: Instant,
    quiet: bool,
}

impl Progress {
    /// A progress that counts from now.
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

    /// The time since this was created.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
