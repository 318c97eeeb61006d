//! The agents, all in this process: one task and one connection for each worker. Workers stop and
//! start in no time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::resp::{Connection, Value, message};
use super::{CHANGES, COUNTS, DESIRED, pair};
use crate::message::{BenchEvent, fail_on_orders, say};
use crate::names;
use crate::tally::Tally;

/// Delays between attempts to connect, as in Lockstep's daemons.
const DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(2500));

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port of the server on the loopback interface
    #[arg(long)]
    port: u16,
    #[arg(long)]
    agents: usize,
    /// Milliseconds between two polls of the container; with 0 its state is known at once
    #[arg(long, default_value_t = 0)]
    poll_ms: u64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let tally = Arc::new(Tally::new(0, args.agents, say));
    let mut failures = Vec::new();
    for worker in 0..args.agents {
        let failure = Arc::new(Notify::new());
        failures.push(Arc::clone(&failure));
        let agent = Agent {
            name: names::worker(worker),
            count: 0,
            last_value: 0,
            tally: Arc::clone(&tally),
            failure,
            polls: (args.poll_ms > 0).then(|| PollSchedule::of(worker, Duration::from_millis(args.poll_ms))),
        };
        tokio::spawn(agent.run(args.port));
    }
    say(BenchEvent::Ready);
    fail_on_orders(&failures).await;
    Ok(())
}

struct Agent {
    name: String,
    /// Its worker's total restart count.
    count: u64,
    last_value: u32,
    tally: Arc<Tally>,
    failure: Arc<Notify>,
    /// The schedule of polls of the container, if any.
    polls: Option<PollSchedule>,
}

/// Polls at regular times.
struct PollSchedule {
    first: Instant,
    every: Duration,
}

impl PollSchedule {
    /// A schedule whose offset is spread evenly over all agents.
    fn of(agent: usize, every: Duration) -> Self {
        // Offsets by the golden ratio.
        let part = (agent as f64 * 0.618_033_988_749_895).fract();
        Self {
            first: Instant::now() + every.mul_f64(part),
            every,
        }
    }

    fn next(&self, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.first).as_nanos();
        let every = self.every.as_nanos().max(1);
        let left = every - since % every;
        now.max(self.first) + Duration::from_nanos(u64::try_from(left).unwrap_or(0))
    }
}

impl Agent {
    /// Keeps a connection up.
    async fn run(mut self, port: u16) {
        let delays = || {
            ExponentialBuilder::default()
                .with_min_delay(DELAYS.0)
                .with_max_delay(DELAYS.1)
                .with_jitter()
                .without_max_times()
                .build()
        };
        let mut delay = delays();
        loop {
            if let Ok(mut connection) = Connection::open(port).await
                && self.greet(&mut connection).await.is_ok()
            {
                delay = delays();
                let _ = self.live(&mut connection).await;
            }
            tokio::time::sleep(delay.next().unwrap_or(DELAYS.1)).await;
        }
    }

    async fn greet(&self, connection: &mut Connection) -> Result<()> {
        connection
            .send(&[&["HELLO", "3"], &["SUBSCRIBE", DESIRED]])
            .await?;
        self.report(connection).await
    }

    /// Handles messages until the connection ends.
    async fn live(&mut self, connection: &mut Connection) -> Result<()> {
        loop {
            tokio::select! {
                value = connection.next() => {
                    if self.handle(&value?) {
                        self.wait_for_poll().await;
                        self.report(connection).await?;
                    }
                }
                () = self.failure.notified() => {
                    self.tally.fails();
                    self.wait_for_poll().await;
                    self.restart(self.count + 1);
                    self.report(connection).await?;
                }
            }
        }
    }

    /// Waits until the next poll of the container.
    async fn wait_for_poll(&self) {
        if let Some(polls) = &self.polls {
            sleep_until(polls.next(Instant::now())).await;
        }
    }

    /// Handles a message. Returns true if there is something to report.
    fn handle(&mut self, value: &Value) -> bool {
        let Some((desired, value)) = message(value).and_then(pair) else {
            return false;
        };
        if let Ok(value) = u32::try_from(value)
            && value != self.last_value
        {
            self.last_value = value;
            self.tally.has(value);
        }
        // If it is off by more than one, the orchestrator recreates, which does not happen here.
        let desired = desired.parse().unwrap_or(self.count);
        let restarts = desired == self.count + 1;
        if restarts {
            self.restart(desired);
        }
        restarts
    }

    fn restart(&mut self, count: u64) {
        self.count = count;
        self.tally.runs(count);
    }

    async fn report(&self, connection: &mut Connection) -> Result<()> {
        let count = self.count.to_string();
        let change = format!("{} {count}", self.name);
        connection
            .send(&[
                &["HSET", COUNTS, &self.name, &count],
                &["PUBLISH", CHANGES, &change],
            ])
            .await
    }
}
