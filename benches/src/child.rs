//! The processes of the benchmark, and what the kernel says of them.

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

use crate::message::{self, News, Order, line};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// This program, doing one part of the benchmark.
pub(crate) struct Child {
    process: Process,
    stdin: ChildStdin,
    news: mpsc::Receiver<News>,
    pub(crate) pid: u32,
}

impl Child {
    /// Starts it, and waits until it takes orders.
    pub(crate) async fn start(args: &[String]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().context("it has ended")?;
        let stdin = process.stdin.take().context("stdin")?;
        let news = message::news(process.stdout.take().context("stdout")?);
        let mut child = Self {
            process,
            stdin,
            news,
            pid,
        };
        child
            .hear(|news| matches!(news, News::Ready).then_some(()))
            .await
            .with_context(|| args.join(" "))?;
        Ok(child)
    }

    pub(crate) async fn order(&mut self, order: Order) -> Result<()> {
        Ok(self.stdin.write_all(line(order)?.as_bytes()).await?)
    }

    /// The first news that is what is waited for. Others are passed over.
    pub(crate) async fn hear<T>(&mut self, wanted: impl Fn(News) -> Option<T>) -> Result<T> {
        let heard = tokio::time::timeout(PATIENCE, async {
            while let Some(news) = self.news.recv().await {
                if let Some(heard) = wanted(news) {
                    return Ok(heard);
                }
            }
            bail!("a process of the benchmark has ended")
        });
        heard.await.context("nothing is heard")?
    }

    /// Kills it, with no time to say anything, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }
}

/// CPU time of a process so far, nanoseconds.
pub(crate) fn cpu(pid: u32) -> Result<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    let time = clock_gettime(clock)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

/// Memory of a process now and at most, KiB.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .with_context(|| format!("{name} of {pid}"))
    };
    Ok((kib("VmRSS:")?, kib("VmHWM:")?))
}

/// Raises the number of files that this process and its children may open as far as it goes, and gives it.
pub(crate) fn raise_files() -> Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}
