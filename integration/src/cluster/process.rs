//! Starts, finds and ends processes of an instance.
//!
//! Each process has the instance's state folder in its environment, which its children inherit
//! (such as the shims of containerd), so that all are found even if their record is lost.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{ClusterError, ProcessId};

/// GOGC of the Go programs. By default the API server collects its small heap all the time.
const GARBAGE_PERCENT: &str = "400";
/// GOMEMLIMIT of the Go programs: above it they collect more often. A few large requests make the
/// API server's heap grow to many times its usual size.
const MEMORY: &str = "4GiB";
/// The environment variable that marks the processes of an instance.
const MARK: &str = "LOCKSTEP_TESTBED_INSTANCE";

/// The namespaces of another process that a new process enters.
#[derive(Debug, Clone, Copy)]
pub enum Enter {
    /// None: it runs in the caller's namespaces.
    Nothing,
    /// The network namespace.
    Network(Pid),
    /// The mount, network and UTS namespaces.
    Node(Pid),
}

impl Enter {
    /// A command line that runs `program` in them.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let (pid, flags): (_, &[&str]) = match self {
            Self::Nothing => return Command::new(program),
            Self::Network(pid) => (pid, &["-n"]),
            Self::Node(pid) => (pid, &["-m", "-n", "-u"]),
        };
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(pid.to_string())
            .args(flags)
            .arg("--")
            .arg(program);
        command
    }
}

/// Starts daemons of an instance.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    state_dir: PathBuf,
}

impl Launcher {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
        }
    }

    /// The log of the daemon called `name`.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.state_dir.join("logs").join(format!("{name}.log"))
    }

    /// Starts a daemon in its own session. It outlives this process.
    pub(super) fn start(&self, name: &str, command: &Command) -> Result<ProcessId, ClusterError> {
        let path = self.log(name);
        // A restarted daemon appends to its log.
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(ClusterError::io(&path))?;
        let errors = log.try_clone().map_err(ClusterError::io(&path))?;
        let tools = self.state_dir.join("bin");
        let search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mut child = Command::new("setsid")
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(&self.state_dir)
            .env_clear()
            .env("PATH", format!("{}:{search}", tools.display()))
            .env("HOME", "/root")
            .env("GOGC", GARBAGE_PERCENT)
            .env("GOMEMLIMIT", MEMORY)
            .env(MARK, &self.state_dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(ClusterError::io(Path::new("setsid")))?;
        let started = ProcessId::of(Pid::from_raw(child.id().cast_signed()));
        // Waits for the end, so that no zombie is left.
        std::thread::spawn(move || child.wait());
        started.ok_or_else(|| self.died(name))
    }

    /// The error for a daemon that exited unexpectedly.
    pub(super) fn died(&self, name: &str) -> ClusterError {
        let text = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let log = lines
            .get(lines.len().saturating_sub(15)..)
            .unwrap_or_default()
            .join("\n");
        ClusterError::Died {
            name: name.to_owned(),
            log,
        }
    }
}

/// `--name=value`.
pub(super) fn flag(name: &str, value: impl Into<OsString>) -> OsString {
    let mut flag = OsString::from(name);
    flag.push("=");
    flag.push(value.into());
    flag
}

/// All processes that are marked as belonging to the instance in `state_dir`.
pub(super) fn marked(state_dir: &Path) -> BTreeSet<ProcessId> {
    let mark = format!("{MARK}={}", state_dir.display());
    all_pids()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
                environ
                    .split(|byte| *byte == 0)
                    .any(|entry| entry == mark.as_bytes())
            })
        })
        .filter_map(ProcessId::of)
        .collect()
}

/// Every process id of the machine.
pub(crate) fn all_pids() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
}

/// Kills the processes that `find` returns until there are none, for at most `timeout`.
pub(super) fn kill_until_gone(
    find: impl Fn() -> BTreeSet<ProcessId>,
    timeout: Duration,
) -> Result<(), ClusterError> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = find();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(ClusterError::Unkillable(left.into_iter().collect()));
        }
        for process in left {
            process.signal(Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
