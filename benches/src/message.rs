//! What the benchmark and its processes tell each other, one JSON object a line: orders on stdin, news on stdout. Times are nanoseconds of the
//! machine's monotonic clock, which all of its processes share.

use std::io::Write as _;
use std::sync::Arc;

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::{Notify, mpsc};

/// To a process of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Say when so many are connected.
    Await {
        /// How many.
        connected: usize,
    },
    /// Start all workers.
    Start,
    /// Tell all a value that asks for nothing.
    Push {
        /// The value; never the same twice in a row.
        value: u32,
    },
    /// Tell all to run the next generation, with nothing in between.
    Raise,
    /// From now on the coordinator decides.
    Coordinate,
    /// Let this worker fail.
    Fail {
        /// Which.
        worker: usize,
    },
    /// Say how often workers were told anything, of each group.
    Count,
}

/// From a process of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub(crate) enum News {
    /// It takes orders.
    Ready,
    /// As many are connected as was asked for.
    Connected {
        /// When.
        at: u64,
    },
    /// A value, or a generation, is about to leave.
    Pushed {
        /// When.
        at: u64,
    },
    /// The last worker has been told the value.
    Has {
        /// Which.
        value: u32,
        /// When.
        at: u64,
    },
    /// The worker is about to report its failure.
    Failed {
        /// Which group's.
        group: usize,
        /// When.
        at: u64,
    },
    /// The last worker of a group runs the generation.
    Runs {
        /// Whose.
        group: usize,
        /// Which.
        generation: u64,
        /// When.
        at: u64,
    },
    /// The coordinator decides.
    Coordinating,
    /// Whoever decides knows that all run the generation.
    Synced {
        /// Which group's.
        group: usize,
        /// Which.
        generation: u64,
        /// When.
        at: u64,
        /// Milliseconds from the decision until all were known to be parked, where there is a barrier.
        parked_ms: f64,
    },
    /// So often were the workers of a group told anything.
    Told {
        /// Whose.
        group: usize,
        /// How often.
        times: u64,
    },
}

/// Now.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(|now| {
        u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    });
    now.unwrap_or(0)
}

/// Tells the benchmark. Where it is gone, this process ends soon too.
pub(crate) fn say(news: News) {
    if let Ok(mut line) = serde_json::to_string(&news) {
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes());
        let _ = stdout.flush();
    }
}

/// The orders that come on stdin, until the benchmark is gone.
pub(crate) fn orders() -> mpsc::Receiver<Order> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else {
                break;
            };
            if sender.blocking_send(order).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Has workers fail as the orders on stdin say, until the benchmark is gone.
pub(crate) async fn fail_as_told(failures: &[Arc<Notify>]) {
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        if let Order::Fail { worker } = order
            && let Some(failure) = failures.get(worker)
        {
            failure.notify_one();
        }
    }
}

/// The news that come from a process, until it is gone.
pub(crate) fn news(from: ChildStdout) -> mpsc::Receiver<News> {
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(message) = serde_json::from_str(&line) else {
                break;
            };
            if sender.send(message).await.is_err() {
                break;
            }
        }
    });
    receiver
}

/// A line to send.
pub(crate) fn line(order: Order) -> Result<String> {
    Ok(serde_json::to_string(&order)? + "\n")
}
