//! The orchestrator: receives counts, publishes the desired count, and knows when all workers have
//! it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;

use super::resp::{Connection, Value, message};
use super::{CHANGES, COUNTS, DESIRED, pair};
use crate::message::{BenchEvent, Order, now, orders, say};

/// How often the number of connections is checked, and the delay between attempts to connect.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port of the server on the loopback interface
    #[arg(long)]
    port: u16,
    #[arg(long)]
    agents: usize,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let mut orders = orders();
    let mut counts = Counts::new(args.agents);
    let mut value = 0;
    say(BenchEvent::Ready);
    loop {
        let live = async {
            let mut connection = Connection::open(args.port).await?;
            counts.read(connection.ask(&["HGETALL", COUNTS]).await?);
            connection
                .send(&[&["HELLO", "3"], &["SUBSCRIBE", CHANGES]])
                .await?;
            live(&mut connection, &mut orders, &mut counts, &mut value, args.port).await
        };
        if live.await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Works until the connection fails or the benchmark is gone.
async fn live(
    connection: &mut Connection,
    orders: &mut mpsc::Receiver<Order>,
    counts: &mut Counts,
    value: &mut u32,
    port: u16,
) -> Result<()> {
    loop {
        tokio::select! {
            change = connection.next() => {
                let change = change?;
                let Some((worker, count)) = message(&change).and_then(pair) else {
                    continue;
                };
                if counts.note(worker, count) {
                    publish(connection, counts.desired, *value).await?;
                }
                if counts.all_have_it() {
                    say(BenchEvent::Synced { group: 0, generation: counts.desired, at: now(), parked_ms: 0.0 });
                }
            }
            order = orders.recv() => match order {
                None => return Ok(()),
                Some(Order::Await { connected }) => {
                    all(port, connected).await?;
                    say(BenchEvent::Connected { at: now() });
                }
                Some(Order::Push { value: next }) => {
                    *value = next;
                    say(BenchEvent::Pushed { at: now() });
                    publish(connection, counts.desired, next).await?;
                }
                Some(_) => {}
            },
        }
    }
}

/// Publishes the desired count and the value.
async fn publish(connection: &mut Connection, desired: u64, value: u32) -> Result<()> {
    connection
        .send(&[&["PUBLISH", DESIRED, &format!("{desired} {value}")]])
        .await
}

/// Returns once this many agents have subscribed and written their counts.
async fn all(port: u16, agents: usize) -> Result<()> {
    let mut connection = Connection::open(port).await?;
    let wanted = u64::try_from(agents)?;
    loop {
        let subscribed = connection.ask(&["PUBSUB", "NUMSUB", DESIRED]).await?;
        let subscribed = matches!(subscribed, Value::List(list) if list.contains(&Value::Number(wanted)));
        if subscribed && connection.ask(&["HLEN", COUNTS]).await? == Value::Number(wanted) {
            return Ok(());
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// The counts of all workers.
struct Counts {
    agents: usize,
    of: HashMap<String, u64>,
    /// How many workers have each count.
    with: BTreeMap<u64, usize>,
    desired: u64,
}

impl Counts {
    fn new(agents: usize) -> Self {
        Self {
            agents,
            of: HashMap::new(),
            with: BTreeMap::new(),
            desired: 0,
        }
    }

    fn read(&mut self, all: Value) {
        let Value::List(all) = all else { return };
        for pair in all.chunks_exact(2) {
            if let [Value::Text(worker), Value::Text(count)] = pair {
                self.note(worker, count.parse().unwrap_or(0));
            }
        }
    }

    /// Records a count. Returns true if the desired count changes.
    fn note(&mut self, worker: &str, count: u64) -> bool {
        let before = match self.of.get_mut(worker) {
            Some(known) => Some(std::mem::replace(known, count)),
            None => self.of.insert(worker.to_owned(), count),
        };
        if let Some(before) = before
            && let Some(with) = self.with.get_mut(&before)
        {
            *with -= 1;
            if *with == 0 {
                self.with.remove(&before);
            }
        }
        *self.with.entry(count).or_default() += 1;
        let raised = count > self.desired;
        self.desired = self.desired.max(count);
        raised
    }

    fn all_have_it(&self) -> bool {
        self.with.get(&self.desired) == Some(&self.agents)
    }
}
