//! The processes of the benchmark, and their use of resources.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::message::{self, BenchEvent, Order, line};

/// Time limit for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// A process of this program that does one part of the benchmark.
pub(crate) struct Child {
    process: Process,
    stdin: ChildStdin,
    events: mpsc::Receiver<BenchEvent>,
    pub(crate) pid: u32,
}

impl Child {
    /// Starts it, and waits until it accepts orders.
    pub(crate) async fn start(args: &[String]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().context("it has ended")?;
        let stdin = process.stdin.take().context("stdin")?;
        let events = message::events(process.stdout.take().context("stdout")?);
        let mut child = Self {
            process,
            stdin,
            events,
            pid,
        };
        child
            .wait_for(|event| matches!(event, BenchEvent::Ready).then_some(()))
            .await
            .with_context(|| args.join(" "))?;
        Ok(child)
    }

    pub(crate) async fn order(&mut self, order: Order) -> Result<()> {
        Ok(self.stdin.write_all(line(order)?.as_bytes()).await?)
    }

    /// Waits for the first event that matches, and ignores others.
    pub(crate) async fn wait_for<T>(&mut self, wanted: impl Fn(BenchEvent) -> Option<T>) -> Result<T> {
        let waited = tokio::time::timeout(STEP_TIMEOUT, async {
            while let Some(event) = self.events.recv().await {
                if let Some(found) = wanted(event) {
                    return Ok(found);
                }
            }
            bail!("a process of the benchmark has ended")
        });
        waited.await.context("no such event in time")?
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }
}

/// CPU time of a process so far, in nanoseconds.
pub(crate) fn cpu(pid: u32) -> Result<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    let time = clock_gettime(clock)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

/// Present and peak memory of a process, in KiB.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .with_context(|| format!("{name} of {pid}"))
    };
    Ok((kib("VmRSS:")?, kib("VmHWM:")?))
}

/// Raises the limit on open files of this process and its children to the maximum, and returns it.
pub(crate) fn raise_files() -> Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}
