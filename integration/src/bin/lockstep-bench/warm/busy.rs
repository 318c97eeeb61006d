//! Processes that take the time of the processors from a job.

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

/// Computes, and looks now and then whether its parent is still there.
const LOOP: &str =
    "while kill -0 $PPID 2> /dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done";

/// They end when this is dropped, or when this process ends in any other way.
pub(super) struct Busy {
    _children: Vec<Child>,
}

impl Busy {
    /// Starts `count` of them.
    pub(super) fn start(count: u8) -> Result<Self> {
        let start = || Command::new("sh").args(["-c", LOOP]).kill_on_drop(true).spawn();
        let children = (0..count).map(|_| start()).collect::<Result<_, _>>();
        Ok(Self {
            _children: children.context("cannot start sh")?,
        })
    }
}
