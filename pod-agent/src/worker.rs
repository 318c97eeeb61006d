//! Starts the worker process, and writes the agent's own few lines to stderr, which is the worker's
//! log too.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::machine::Generation;
use crate::sys::{self, Mask, Terminal};

/// Tells the worker how often its group has been restarted.
pub(crate) const ATTEMPT: &str = "LOCKSTEP_RESTART_ATTEMPT";
/// Tells the worker which file to touch, or which socket to send to, to show that it lives.
pub(crate) const HEARTBEAT: &str = "LOCKSTEP_HEARTBEAT";

/// The worker could not be started. `code` is a shell's exit code: 127 for a missing program, else
/// 126.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartError {
    pub(crate) code: i32,
    pub(crate) detail: String,
}

/// Starts the worker as leader of its own process group, with everything else as the container gave
/// it: environment, working directory, user, standard streams, signal mask and default
/// dispositions. `prepare` may change it, as for [standbys](crate::standby). Returns its PID.
///
/// The program is looked up in the container's PATH, as the runtime would have done.
pub(crate) fn start(
    command: &[OsString],
    generation: Generation,
    heartbeat: Option<&Path>,
    mask: Mask,
    prepare: impl FnOnce(&mut Command),
) -> Result<i32, StartError> {
    let Some((program, args)) = command.split_first() else {
        return Err(StartError {
            code: 127,
            detail: "no worker command".to_owned(),
        });
    };
    let mut worker = Command::new(program);
    worker
        .args(args)
        .env(ATTEMPT, generation.to_string())
        .process_group(0);
    match heartbeat {
        Some(path) => worker.env(HEARTBEAT, path),
        None => worker.env_remove(HEARTBEAT),
    };
    prepare(&mut worker);
    let terminal = if stdin().is_terminal() {
        Terminal::Claimed
    } else {
        Terminal::LeftAlone
    };
    sys::hand_over(&mut worker, mask, terminal);
    match worker.spawn() {
        Ok(child) => Ok(child.id().cast_signed()),
        Err(error) => Err(StartError {
            code: if error.kind() == ErrorKind::NotFound {
                127
            } else {
                126
            },
            detail: format!("cannot start {program:?}: {error}"),
        }),
    }
}

/// Writes one line to stderr, or nothing if the log is stuck: the agent never waits for it.
pub(crate) fn say(text: &str) {
    let mut line = format!("lockstep: {text}");
    line.truncate(line.floor_char_boundary(2048));
    line.push('\n');
    let mut stderr = stderr();
    if sys::writable(stderr.as_fd()) {
        // If stderr fails, there is nowhere to report it.
        let _ = stderr.write_all(line.as_bytes());
    }
}
