//! Runs programs to their end. Errors have what they wrote.

use std::ffi::OsStr;
use std::process::{Output, Stdio};

use tokio::process::Command;

/// A program could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program did not start.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program's name or path.
        program: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The program exited with a code other than 0.
    #[error("`{line}` failed ({status}): {stderr}")]
    Failed {
        /// The command line.
        line: String,
        /// The exit status.
        status: std::process::ExitStatus,
        /// Its standard error, or its standard output if that is empty.
        stderr: String,
    },
}

/// Runs `program` and returns its standard output.
pub async fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String, CommandError> {
    let mut command = Command::new(program);
    command.args(args);
    output(command).await
}

/// Runs `command` and returns its standard output. Standard input is empty. The program is killed
/// when the future is dropped.
pub async fn output(mut command: Command) -> Result<String, CommandError> {
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    finish(command.as_std(), ended)
}

/// [`run`] for code that is not async, such as `Drop`.
pub fn run_blocking<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String, CommandError> {
    let mut command = std::process::Command::new(program);
    let ended = command.args(args).stdin(Stdio::null()).output();
    finish(&command, ended)
}

fn finish(command: &std::process::Command, ended: std::io::Result<Output>) -> Result<String, CommandError> {
    let ended = ended.map_err(|source| CommandError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    Err(CommandError::Failed {
        line: line(command),
        status: ended.status,
        stderr: if stderr.is_empty() {
            stdout.trim().to_owned()
        } else {
            stderr
        },
    })
}

/// The command line, for people to read.
pub fn line(command: &std::process::Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}
