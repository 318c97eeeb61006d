//! The command line, parsed by hand: a parser library would be a third of the binary.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

const HELP: &str = "lockstep-pod-agent: PID 1 of a supervised worker container

usage: lockstep-pod-agent --socket PATH --container NAME [--container-id ID] [--grace-default-ms N] [--termination-grace-ms N] [--heartbeat PATH] [--standby DIR | --standby-program] -- COMMAND [ARG...]
       lockstep-pod-agent --copy-to DIR

  --socket PATH          Unix socket of the node daemon
  --container NAME       name of this container in its pod
  --container-id ID      id of this container in the container runtime; if omitted, the node daemon finds it
  --grace-default-ms N   time between SIGTERM and SIGKILL if an order states none (default 0)
  --termination-grace-ms N
                         time that Kubernetes gives the container to end; a worker that still runs after it is supervised again (default: unknown)
  --heartbeat PATH       file that the worker may touch to show that it lives; created if missing. With LOCKSTEP_HEARTBEAT=socket in
                         the environment, a Unix datagram socket that the worker may send to instead
  --standby DIR          keep an interpreter ready for the next attempt of a Python worker; DIR is a sticky folder of the container's own
  --standby-program      start the worker a second time ahead, once it has called park(): the next attempt goes on from there
  -- COMMAND [ARG...]    the worker, started when the group is released
  --copy-to DIR          copy this program to DIR and exit";

/// Longest path that fits a `sockaddr_un`, without its terminating zero.
const MAX_SOCKET_PATH: usize = 107;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    Run(Args),
    /// Say this and exit 0 (`--help`, `--version`).
    Print(String),
    /// Put this program into a directory and exit 0.
    Copy(PathBuf),
}

/// What is started ahead for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// The interpreter of a Python worker. Its hook is put into this folder.
    Python(PathBuf),
    /// The program, which parks itself.
    Program,
}

/// A valid command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) socket: PathBuf,
    pub(crate) container: String,
    /// Empty if it is not known here.
    pub(crate) container_id: String,
    /// Grace if an order states none.
    pub(crate) grace_default: Duration,
    /// The time that Kubernetes gives the container to end, if it is known.
    pub(crate) termination_grace: Option<Duration>,
    /// File that the worker touches, or socket that it sends to, to show that it lives.
    pub(crate) heartbeat: Option<PathBuf>,
    /// None: there are no standbys.
    pub(crate) standby: Option<Ahead>,
    /// The worker's program and arguments; never empty.
    pub(crate) command: Vec<OsString>,
    /// Run although this process is not PID 1. For development outside a container.
    pub(crate) allow_not_pid1: bool,
}

/// Why a command line was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ArgsError {
    #[error("unknown option {0:?}")]
    Unknown(OsString),
    #[error("option {0} needs a value")]
    NoValue(&'static str),
    #[error("option {0} is required")]
    Missing(&'static str),
    #[error("option {0} was given twice")]
    Twice(&'static str),
    #[error("options {0} and {1} exclude each other")]
    Exclude(&'static str, &'static str),
    #[error("option {option}: {value:?} is not {expected}")]
    Invalid {
        option: &'static str,
        value: OsString,
        expected: &'static str,
    },
    #[error("no worker command after --")]
    NoCommand,
}

/// Parses the arguments after the program's own name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, ArgsError> {
    let mut args = args.into_iter();
    let mut socket = None;
    let mut container = None;
    let mut container_id = None;
    let mut grace = None;
    let mut termination_grace = None;
    let mut copy_to = None;
    let mut heartbeat = None;
    let mut standby = None;
    let mut standby_program = false;
    let mut allow_not_pid1 = false;
    let mut command: Vec<OsString> = Vec::new();

    while let Some(arg) = args.next() {
        let (name, inline) = split(&arg);
        let mut value = |option: &'static str, slot: &mut Option<OsString>| {
            if slot.is_some() {
                return Err(ArgsError::Twice(option));
            }
            let value = inline
                .clone()
                .or_else(|| args.next())
                .ok_or(ArgsError::NoValue(option))?;
            *slot = Some(value);
            Ok(())
        };
        match name.to_str() {
            Some("--socket") => value("--socket", &mut socket)?,
            Some("--container") => value("--container", &mut container)?,
            Some("--container-id") => value("--container-id", &mut container_id)?,
            Some("--copy-to") => value("--copy-to", &mut copy_to)?,
            Some("--grace-default-ms") => value("--grace-default-ms", &mut grace)?,
            Some("--termination-grace-ms") => value("--termination-grace-ms", &mut termination_grace)?,
            Some("--heartbeat") => value("--heartbeat", &mut heartbeat)?,
            Some("--standby") => value("--standby", &mut standby)?,
            Some("--standby-program") if inline.is_none() => standby_program = true,
            Some("--allow-not-pid1") if inline.is_none() => allow_not_pid1 = true,
            Some("--help" | "-h") => return Ok(Invocation::Print(HELP.to_owned())),
            Some("--version") => return Ok(Invocation::Print(env!("CARGO_PKG_VERSION").to_owned())),
            Some("--") => {
                command = args.collect();
                break;
            }
            _ => return Err(ArgsError::Unknown(arg)),
        }
    }

    if let Some(dir) = copy_to {
        return Ok(Invocation::Copy(dir.into()));
    }
    let socket = socket_path(socket)?;
    if command.first().is_none_or(|program| program.is_empty()) {
        return Err(ArgsError::NoCommand);
    }
    Ok(Invocation::Run(Args {
        socket,
        container: text("--container", container)?,
        container_id: match container_id {
            Some(id) => text("--container-id", Some(id))?,
            None => String::new(),
        },
        grace_default: millis("--grace-default-ms", grace)?.unwrap_or_default(),
        termination_grace: millis("--termination-grace-ms", termination_grace)?,
        heartbeat: heartbeat.map(PathBuf::from),
        standby: ahead(standby, standby_program)?,
        command,
        allow_not_pid1,
    }))
}

fn socket_path(socket: Option<OsString>) -> Result<PathBuf, ArgsError> {
    let socket = socket.ok_or(ArgsError::Missing("--socket"))?;
    if socket.is_empty() || socket.len() > MAX_SOCKET_PATH {
        return Err(ArgsError::Invalid {
            option: "--socket",
            value: socket,
            expected: "a path of 1 to 107 bytes",
        });
    }
    Ok(socket.into())
}

/// What is started ahead: the interpreter, by the hook in this folder, or the program itself.
fn ahead(python: Option<OsString>, program: bool) -> Result<Option<Ahead>, ArgsError> {
    match (python, program) {
        (Some(_), true) => Err(ArgsError::Exclude("--standby", "--standby-program")),
        (Some(dir), false) => Ok(Some(Ahead::Python(dir.into()))),
        (None, true) => Ok(Some(Ahead::Program)),
        (None, false) => Ok(None),
    }
}

/// Splits `--name=value`.
fn split(arg: &OsStr) -> (OsString, Option<OsString>) {
    match arg.to_str().and_then(|arg| arg.split_once('=')) {
        Some((name, value)) if name.starts_with("--") => (name.into(), Some(value.into())),
        _ => (arg.to_owned(), None),
    }
}

fn text(option: &'static str, value: Option<OsString>) -> Result<String, ArgsError> {
    match value.ok_or(ArgsError::Missing(option))?.into_string() {
        Ok(value) if !value.is_empty() && value.len() <= 1024 => Ok(value),
        Ok(value) => Err(ArgsError::Invalid {
            option,
            value: value.into(),
            expected: "a text of 1 to 1024 bytes",
        }),
        Err(value) => Err(ArgsError::Invalid {
            option,
            value,
            expected: "UTF-8",
        }),
    }
}

fn millis(option: &'static str, value: Option<OsString>) -> Result<Option<Duration>, ArgsError> {
    let Some(value) = value else { return Ok(None) };
    match value.to_str().and_then(|text| text.parse::<u32>().ok()) {
        Some(ms) => Ok(Some(Duration::from_millis(ms.into()))),
        None => Err(ArgsError::Invalid {
            option,
            value,
            expected: "a number of milliseconds",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Invocation, ArgsError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn args(line: &str) -> Args {
        match run(line) {
            Ok(Invocation::Run(args)) => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn full_line() {
        let expected = Args {
            socket: "/s".into(),
            container: "worker".into(),
            container_id: "abc".into(),
            grace_default: Duration::from_millis(250),
            termination_grace: Some(Duration::from_secs(30)),
            heartbeat: Some("/h".into()),
            standby: Some(Ahead::Python("/w".into())),
            command: vec!["python3".into(), "--socket".into(), "--".into()],
            allow_not_pid1: false,
        };
        let spaced = "--socket /s --container worker --container-id abc --grace-default-ms 250 --termination-grace-ms 30000 --heartbeat /h --standby /w -- python3 --socket --";
        let joined = "--socket=/s --container=worker --container-id=abc --grace-default-ms=250 --termination-grace-ms=30000 --heartbeat=/h --standby=/w -- python3 --socket --";
        assert_eq!(args(spaced), expected);
        assert_eq!(args(joined), expected);
    }

    #[test]
    fn one_thing_at_most_is_started_ahead() {
        let line = |options: &str| format!("--socket /s --container w {options} -- x");
        assert_eq!(args(&line("")).standby, None);
        assert_eq!(args(&line("--standby-program")).standby, Some(Ahead::Program));
        let python = Some(Ahead::Python("/w".into()));
        assert_eq!(args(&line("--standby /w")).standby, python);
        assert_eq!(
            run(&line("--standby-program --standby=/w")),
            Err(ArgsError::Exclude("--standby", "--standby-program"))
        );
    }

    #[test]
    fn the_container_id_is_optional_and_the_agent_can_be_copied() {
        assert_eq!(args("--socket /s --container w -- x").container_id, "");
        assert_eq!(run("--copy-to /d"), Ok(Invocation::Copy("/d".into())));
    }

    #[test]
    fn arguments_of_the_worker_may_be_any_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let odd = OsString::from_vec(vec![0xff, b'=', 0xfe]);
        let mut line: Vec<OsString> = "--socket /s --container w --container-id i -- cat"
            .split(' ')
            .map(Into::into)
            .collect();
        line.push(odd.clone());
        match parse(line) {
            Ok(Invocation::Run(args)) => assert_eq!(args.command, vec![OsString::from("cat"), odd]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_name_the_option() {
        let long = "x".repeat(108);
        let cases = [
            ("", "option --socket is required"),
            ("--socket", "option --socket needs a value"),
            (
                "--socket /s --container-id i -- x",
                "option --container is required",
            ),
            ("--copy-to", "option --copy-to needs a value"),
            (
                "--socket /s --container w --container-id i",
                "no worker command after --",
            ),
            (
                "--socket /s --container w --container-id i --",
                "no worker command after --",
            ),
            ("--socket /s --socket /t", "option --socket was given twice"),
            ("--what", "unknown option \"--what\""),
            ("python3", "unknown option \"python3\""),
            (
                "--standby-program=yes",
                "unknown option \"--standby-program=yes\"",
            ),
            (
                "--socket /s --container w --standby /w --standby-program -- x",
                "options --standby and --standby-program exclude each other",
            ),
            ("--allow-not-pid1=yes", "unknown option \"--allow-not-pid1=yes\""),
            (
                "--socket /s --container w --container-id i --grace-default-ms 5s -- x",
                "option --grace-default-ms: \"5s\" is not a number of milliseconds",
            ),
        ];
        for (line, message) in cases {
            match run(line) {
                Err(error) => assert_eq!(error.to_string(), message, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(run(&format!("--socket {long} --container w --container-id i -- x")).is_err());
    }

    #[test]
    fn help_and_version() {
        assert!(matches!(run("--help"), Ok(Invocation::Print(text)) if text.contains("usage:")));
        assert_eq!(
            run("--version"),
            Ok(Invocation::Print(env!("CARGO_PKG_VERSION").into()))
        );
    }
}
