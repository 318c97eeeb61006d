//! Starts one design with all its clients, and measures one block of rounds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use lockstep_integration::host::free_port;
use tokio::process::Child as Process;

use crate::child::{Child, cpu, memory};
use crate::message::{BenchEvent, Order, now};
use crate::samples::Samples;
use crate::valkey;

mod steps;

/// Pause between two rounds, so that they do not affect each other.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause before memory is read.
const REST: Duration = Duration::from_secs(1);

/// A design that is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Design {
    /// Lockstep, with `each` workers on each node.
    Lockstep { each: usize },
    /// The design with Valkey. Its agents poll the container runtime at this interval in
    /// milliseconds; with 0 they know the state of their worker at once.
    Valkey { poll_ms: u64 },
    /// Streams with nothing behind them.
    Bare { tls: bool },
}

/// The size of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) workers: usize,
    /// Rounds of each kind.
    pub(crate) rounds: usize,
    /// Restarts after which memory is read again; 0 skips that.
    pub(crate) restarts: usize,
    /// Milliseconds that a write to the API server takes.
    pub(crate) write_ms: u64,
}

/// A design that is up.
struct Up {
    design: Design,
    streams: usize,
    workers: usize,
    /// The process that decides: with Valkey the orchestrator, else the hub.
    head: Child,
    /// The process with the workers and their agents or daemons.
    fleet: Child,
    /// The Valkey server, if any.
    server: Option<(Process, u32)>,
    args: Vec<String>,
    port: u16,
    /// The generation that all workers run.
    generation: u64,
    /// KiB of the server before the first connection.
    empty: f64,
}

/// Measures one block of rounds of a design. `dir` has keys and tokens.
pub(crate) async fn run(design: Design, dir: &Path, block: Block, samples: &mut Samples) -> Result<()> {
    let mut up = Up::start(design, dir, block, samples).await?;
    if let Design::Valkey { poll_ms: 1.. } = design {
        // For these only restarts differ.
        up.restarts(Block { restarts: 0, ..block }, samples).await?;
        return up.end().await;
    }
    up.pushes(block.rounds, samples).await?;
    if let Design::Bare { .. } = design {
        up.exchanges(block.rounds, samples).await?;
    } else {
        up.restarts(block, samples).await?;
    }
    if block.restarts > 0 && matches!(design, Design::Lockstep { .. }) {
        up.with_steps(block.rounds, samples).await?;
    }
    up.storm(samples).await?;
    up.end().await
}

impl Up {
    async fn start(design: Design, dir: &Path, block: Block, samples: &mut Samples) -> Result<Self> {
        let workers = block.workers;
        let port = free_port()?;
        let ports = ["--port".to_owned(), port.to_string()];
        let streams = match design {
            Design::Lockstep { each } => workers / each,
            Design::Valkey { .. } | Design::Bare { .. } => workers,
        };
        let (args, fleet_args, server) = match design {
            Design::Lockstep { each } => {
                let size = [
                    "--nodes".to_owned(),
                    streams.to_string(),
                    "--each".to_owned(),
                    each.to_string(),
                    "--dir".to_owned(),
                    PathBuf::from(dir).display().to_string(),
                ];
                let write = ["--write-ms".to_owned(), block.write_ms.to_string()];
                (
                    [&["hub".to_owned()], &ports[..], &size, &write].concat(),
                    [&["fleet".to_owned()], &ports[..], &size].concat(),
                    None,
                )
            }
            Design::Valkey { poll_ms } => {
                let server = valkey::start_server(port, workers)?;
                let pid = server.id().unwrap_or_default();
                let size = ["--agents".to_owned(), workers.to_string()];
                let polls = ["--poll-ms".to_owned(), poll_ms.to_string()];
                (
                    [&["orchestrator".to_owned()], &ports[..], &size].concat(),
                    [&["agents".to_owned()], &ports[..], &size, &polls].concat(),
                    Some((server, pid)),
                )
            }
            Design::Bare { tls } => {
                let mut common = [&ports[..], &["--clients".to_owned(), workers.to_string()]].concat();
                if tls {
                    common.extend(["--dir".to_owned(), dir.display().to_string()]);
                }
                let of = |part: &str| [&[part.to_owned()], &common[..]].concat();
                (of("bare-server"), of("bare-clients"), None)
            }
        };
        let head = Child::start(&args).await?;
        tokio::time::sleep(PAUSE).await;
        let (empty, _) = memory(server.as_ref().map_or(head.pid, |(_, pid)| *pid))?;
        let began = now();
        let fleet = Child::start(&fleet_args).await?;
        let mut up = Self {
            design,
            streams,
            workers,
            head,
            fleet,
            server,
            args,
            port,
            generation: 0,
            empty,
        };
        let connected = up.connected().await?;
        samples.connect.add(began, connected);
        if matches!(design, Design::Lockstep { .. }) {
            up.head.order(Order::Start).await?;
            up.pushed().await?;
            up.fleet.wait_for(|event| runs(event, 0)).await?;
        }
        tokio::time::sleep(REST).await;
        samples.idle.push(up.per_stream()?);
        Ok(up)
    }

    /// The time at which all are connected.
    async fn connected(&mut self) -> Result<u64> {
        let connected = self.streams;
        self.head.order(Order::Await { connected }).await?;
        self.head
            .wait_for(|event| match event {
                BenchEvent::Connected { at } => Some(at),
                _ => None,
            })
            .await
    }

    /// The process that holds the connections.
    fn server(&self) -> u32 {
        self.server.as_ref().map_or(self.head.pid, |(_, pid)| *pid)
    }

    fn per_stream(&self) -> Result<f64> {
        let (now, _) = memory(self.server())?;
        Ok((now - self.empty) / self.streams as f64)
    }

    /// CPU time of the server, and of the orchestrator if there is one.
    fn cpu(&self) -> Result<u64> {
        let server = self.server.as_ref().map_or(Ok(0), |(_, pid)| cpu(*pid))?;
        Ok(server + cpu(self.head.pid)?)
    }

    async fn pushed(&mut self) -> Result<u64> {
        self.head
            .wait_for(|event| match event {
                BenchEvent::Pushed { at } => Some(at),
                _ => None,
            })
            .await
    }

    async fn pushes(&mut self, rounds: usize, samples: &mut Samples) -> Result<()> {
        // The first round is a warm-up.
        for round in 0..=rounds {
            let wanted = 1 + u32::try_from(round)?;
            let before = self.cpu()?;
            self.head.order(Order::Push { value: wanted }).await?;
            let pushed = self.pushed().await?;
            let has = self
                .fleet
                .wait_for(|event| match event {
                    BenchEvent::Has { value, at } if value == wanted => Some(at),
                    _ => None,
                })
                .await?;
            tokio::time::sleep(PAUSE).await;
            if round > 0 {
                samples.push.add(pushed, has);
                samples.push_cost.add(self.cpu()? - before, self.streams);
            }
        }
        Ok(())
    }

    /// Restarts, first without the coordinator, then with it.
    async fn restarts(&mut self, block: Block, samples: &mut Samples) -> Result<()> {
        if matches!(self.design, Design::Lockstep { .. }) {
            for _ in 0..block.rounds {
                self.generation += 1;
                let generation = self.generation;
                let before = self.cpu()?;
                self.head.order(Order::Raise).await?;
                let pushed = self.pushed().await?;
                let at = self.fleet.wait_for(|event| runs(event, generation)).await?;
                tokio::time::sleep(PAUSE).await;
                samples.raise.add(pushed, at);
                samples.raise_cost.add(self.cpu()? - before, self.streams);
            }
            self.head.order(Order::Coordinate).await?;
            self.head
                .wait_for(|event| matches!(event, BenchEvent::Coordinating).then_some(()))
                .await?;
        }
        for _ in 0..block.rounds {
            self.restart(samples).await?;
        }
        let rest = async |up: &Self| {
            tokio::time::sleep(REST).await;
            up.per_stream()
        };
        samples.busy.push(rest(self).await?);
        if block.restarts > 0 {
            let mut unseen = Samples::default();
            for _ in 0..block.restarts {
                self.restart(&mut unseen).await?;
            }
            samples.restarted.push(rest(self).await?);
        }
        Ok(())
    }

    /// As many messages and answers as for a push with reports, and as for a restart.
    async fn exchanges(&mut self, rounds: usize, samples: &mut Samples) -> Result<()> {
        for round in 0..2 * rounds {
            let once = round < rounds;
            let (before, clients_before) = (self.cpu()?, cpu(self.fleet.pid)?);
            self.head
                .order(if once {
                    Order::Raise
                } else {
                    Order::Fail { worker: 0 }
                })
                .await?;
            let pushed = self.pushed().await?;
            let answered = self
                .head
                .wait_for(|event| match event {
                    BenchEvent::Synced { at, .. } => Some(at),
                    _ => None,
                })
                .await?;
            tokio::time::sleep(PAUSE).await;
            let (server, clients) = (self.cpu()? - before, cpu(self.fleet.pid)? - clients_before);
            if once {
                samples.raise.add(pushed, answered);
                samples.raise_cost.add(server, self.streams);
            } else {
                samples.trip.add(pushed, answered);
                samples.trip_cost.add(server, self.streams);
                samples.fleet_cost.add(clients, self.streams);
            }
        }
        tokio::time::sleep(REST).await;
        samples.busy.push(self.per_stream()?);
        Ok(())
    }

    async fn restart(&mut self, samples: &mut Samples) -> Result<()> {
        let (before, fleet_before) = (self.cpu()?, cpu(self.fleet.pid)?);
        let failed = self.fail().await?;
        let wanted = self.generation;
        let running = self.fleet.wait_for(|event| runs(event, wanted)).await?;
        let (synced, parked) = self.synced().await?;
        tokio::time::sleep(PAUSE).await;
        samples.trip.add(failed, synced);
        samples.running.add(failed, running);
        samples.parked.push(parked);
        samples.trip_cost.add(self.cpu()? - before, self.streams);
        samples
            .fleet_cost
            .add(cpu(self.fleet.pid)? - fleet_before, self.streams);
        Ok(())
    }

    /// Makes a worker fail, a different one of the fleet each time. Returns the time.
    async fn fail(&mut self) -> Result<u64> {
        self.generation += 1;
        let worker = usize::try_from(self.generation)?.wrapping_mul(7919) % self.workers;
        self.fleet.order(Order::Fail { worker }).await?;
        self.fleet
            .wait_for(|event| match event {
                BenchEvent::Failed { at, .. } => Some(at),
                _ => None,
            })
            .await
    }

    /// The time at which all workers were known to run the generation, and the time until all were
    /// parked.
    async fn synced(&mut self) -> Result<(u64, f64)> {
        let wanted = self.generation;
        self.head
            .wait_for(|event| match event {
                BenchEvent::Synced {
                    generation,
                    at,
                    parked_ms,
                    ..
                } if generation == wanted => Some((at, parked_ms)),
                _ => None,
            })
            .await
    }

    /// Kills the server, and starts it again at once.
    async fn storm(&mut self, samples: &mut Samples) -> Result<()> {
        samples.peak.push(memory(self.server())?.1);
        let killed = now();
        if let Some((server, pid)) = &mut self.server {
            server.kill().await?;
            *server = valkey::start_server(self.port, self.workers)?;
            *pid = server.id().unwrap_or_default();
        }
        // The orchestrator would notice the end of its connection by itself; a new one connects at
        // once.
        self.head.kill().await?;
        self.head = self.successor(self.generation).await?;
        let connected = self.connected().await?;
        samples.storm.add(killed, connected);
        samples.storm_cost.add(self.cpu()?, self.streams);
        samples.storm_peak.push(memory(self.server())?.1);
        if matches!(self.design, Design::Lockstep { .. }) {
            self.served(samples).await?;
        }
        Ok(())
    }

    /// Kills the server again, and makes a worker fail before another one is up.
    async fn served(&mut self, samples: &mut Samples) -> Result<()> {
        let known = self.generation;
        let killed = now();
        self.head.kill().await?;
        self.fail().await?;
        self.head = self.successor(known).await?;
        samples.served.add(killed, self.synced().await?.0);
        Ok(())
    }

    /// Starts a server that continues from this generation, which the killed one knew to run.
    async fn successor(&self, generation: u64) -> Result<Child> {
        if !matches!(self.design, Design::Lockstep { .. }) {
            return Child::start(&self.args).await;
        }
        let runs = ["--generation".to_owned(), generation.to_string()];
        let mut head = Child::start(&[&self.args[..], &runs].concat()).await?;
        head.order(Order::Coordinate).await?;
        Ok(head)
    }

    async fn end(mut self) -> Result<()> {
        self.fleet.kill().await?;
        self.head.kill().await?;
        if let Some((mut server, _)) = self.server {
            server.kill().await?;
        }
        Ok(())
    }
}

fn runs(event: BenchEvent, wanted: u64) -> Option<u64> {
    match event {
        BenchEvent::Runs { generation, at, .. } if generation == wanted => Some(at),
        _ => None,
    }
}
