//! Thousands of histories of the whole system, correct and broken, in one executable.

mod mutants;
mod seeds;

use std::io::Write;

/// Prints a line that the test harness does not capture.
fn say(line: &str) {
    // A closed standard error does not fail the test.
    let _ = writeln!(std::io::stderr(), "{line}");
}
