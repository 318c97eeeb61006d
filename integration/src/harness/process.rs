//! Processes in the host's `/proc`.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// File name of the pod agent. A forked child has it in its command line until it becomes the
/// worker.
const AGENT: &str = "lockstep-pod-agent";

/// A process: its PID and its start time, so that a reused PID is another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// PID on the host.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

struct Stat {
    state: char,
    parent: i32,
    group: i32,
    session: i32,
    start: u64,
}

impl Stat {
    /// Fields of `/proc/<pid>/stat`, see proc_pid_stat(5). The name may have spaces and
    /// parentheses.
    fn read(pid: i32) -> Option<Self> {
        let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let line = String::from_utf8_lossy(&line);
        let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

impl Process {
    /// The process that has this PID now.
    pub fn find(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            start: Stat::read(pid)?.start,
        })
    }

    fn stat(self) -> Option<Stat> {
        Stat::read(self.pid).filter(|stat| stat.start == self.start)
    }

    /// True if it exists and is not a zombie.
    pub fn is_alive(self) -> bool {
        self.stat().is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    }

    /// True if it is stopped (SIGSTOP).
    pub fn is_stopped(self) -> bool {
        self.stat().is_some_and(|stat| stat.state == 'T')
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn signal(self, signal: Signal) -> Result<()> {
        self.stat()
            .with_context(|| format!("process {} is gone", self.pid))?;
        kill(Pid::from_raw(self.pid), signal).with_context(|| format!("{signal} to process {}", self.pid))
    }

    /// An environment variable, as it was when the program started.
    pub fn env(self, name: &str) -> Option<String> {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let wanted = format!("{name}=");
        environment
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy)
            .find_map(|entry| entry.strip_prefix(&wanted).map(str::to_owned))
    }

    /// The command line.
    pub fn args(self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .filter(|arg| !arg.is_empty())
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect()
    }

    /// The working directory, as the process itself names it.
    pub fn cwd(self) -> Option<String> {
        let path = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?;
        Some(path.to_string_lossy().into_owned())
    }

    /// A line of `/proc/<pid>/status`, for example `Uid`, split at white space.
    pub fn status(self, key: &str) -> Vec<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .map(|values| values.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    fn is_agent(self) -> bool {
        self.args()
            .first()
            .is_some_and(|program| program.ends_with(AGENT))
    }

    /// The worker of this agent: its child that leads a process group in the agent's session.
    /// Orphans of a worker become the agent's children too, but have another group or session.
    pub fn worker(self) -> Option<Self> {
        let agent = self.stat()?;
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).ok()?;
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .find_map(|pid| {
                let stat = Stat::read(pid)?;
                let child = Self {
                    pid,
                    start: stat.start,
                };
                let leads = stat.parent == self.pid && stat.group == pid && stat.session == agent.session;
                (leads && !matches!(stat.state, 'Z' | 'X') && !child.args().is_empty() && !child.is_agent())
                    .then_some(child)
            })
    }
}

/// All processes of a container, found by its id in the path of their cgroup.
pub fn in_container(id: &str) -> Vec<Process> {
    pids()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroups| cgroups.contains(id))
        })
        .filter_map(Process::find)
        .filter(|process| process.is_alive())
        .collect()
}

/// PID 1 of a container.
pub fn init_of(id: &str) -> Option<Process> {
    in_container(id)
        .into_iter()
        .find(|process| process.status("NSpid").last().is_some_and(|pid| pid == "1"))
}

/// All processes whose first arguments are these.
pub fn running(args: &[&str]) -> Vec<Process> {
    // This runs many times a second for every process of the machine, so it reads only one small
    // file unless the command line matches.
    let wanted: Vec<u8> = args.iter().flat_map(|arg| arg.bytes().chain([0])).collect();
    pids()
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(&wanted)))
        .filter_map(Process::find)
        .filter(|process| process.is_alive())
        .collect()
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
