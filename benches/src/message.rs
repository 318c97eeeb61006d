//! Messages between the benchmark and its processes, one JSON object per line: orders on stdin,
//! events on stdout. Times are nanoseconds of the machine's monotonic clock, which all processes
//! share.

use std::io::Write as _;
use std::sync::Arc;

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::{Notify, mpsc};

/// An order to a process of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Report when this many are connected.
    Await {
        /// The number.
        connected: usize,
    },
    /// Start all workers.
    Start,
    /// Send all workers a value that has no effect.
    Push {
        /// The value; never the same twice in a row.
        value: u32,
    },
    /// Make all workers run the next generation without a barrier.
    Raise,
    /// Hand over to the coordinators.
    Coordinate,
    /// Make this worker fail.
    Fail {
        /// Its number.
        worker: usize,
    },
    /// Let all workers say from now on once a second which step they have done.
    Steps,
    /// Report for each group how many messages its workers were sent.
    Count,
}

/// An event from a process of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum BenchEvent {
    /// The process accepts orders.
    Ready,
    /// The wanted number of connections exists.
    Connected {
        /// The time.
        at: u64,
    },
    /// A value or a generation is about to be sent.
    Pushed {
        /// The time.
        at: u64,
    },
    /// The last worker has received the value.
    Has {
        /// The value.
        value: u32,
        /// The time.
        at: u64,
    },
    /// The worker is about to report its failure.
    Failed {
        /// Its group.
        group: usize,
        /// The time.
        at: u64,
    },
    /// The last worker of a group runs the generation.
    Runs {
        /// The group.
        group: usize,
        /// The generation.
        generation: u64,
        /// The time.
        at: u64,
    },
    /// The coordinator has decided.
    Coordinating,
    /// The deciding process knows that all workers run the generation.
    Synced {
        /// Its group.
        group: usize,
        /// The generation.
        generation: u64,
        /// The time.
        at: u64,
        /// With a barrier: milliseconds from the decision until all workers were known to be
        /// parked.
        parked_ms: f64,
    },
    /// The number of messages to the workers of a group.
    Messages {
        /// The group.
        group: usize,
        /// The number of messages.
        times: u64,
    },
}

/// The current time.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(|now| {
        u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    });
    now.unwrap_or(0)
}

/// Sends an event to the benchmark. If the benchmark is gone, this process ends soon too.
pub(crate) fn say(event: BenchEvent) {
    if let Ok(mut line) = serde_json::to_string(&event) {
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes());
        let _ = stdout.flush();
    }
}

/// The orders from stdin, until the benchmark is gone.
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

/// Makes workers fail on orders from stdin, until the benchmark is gone.
pub(crate) async fn fail_on_orders(failures: &[Arc<Notify>]) {
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        if let Order::Fail { worker } = order
            && let Some(failure) = failures.get(worker)
        {
            failure.notify_one();
        }
    }
}

/// The events from a process, until it is gone.
pub(crate) fn events(from: ChildStdout) -> mpsc::Receiver<BenchEvent> {
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
