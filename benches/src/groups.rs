//! Many groups on one control plane, some of which fail at the same time. Measures the time that
//! each takes, and the effect on others.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockstep_integration::host::{free_port, target_dir};
use serde_json::json;

use crate::bench::load;
use crate::child::{Child, raise_files};
use crate::message::{BenchEvent, Order};
use crate::output::Table;
use crate::samples::Times;
use crate::token;

/// Workers of a node, of any group.
const EACH: usize = 8;
/// Pause between two rounds, so that they do not affect each other.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause before the coordinators begin: they would take a worker that has not reported for the
/// replacement of a lost one.
const REST: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// JobSets that restart in place
    #[arg(long, default_value_t = 1000)]
    groups: usize,
    /// Workers of each
    #[arg(long, default_value_t = 10)]
    workers: usize,
    /// Numbers of groups that fail at the same time, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,100")]
    failing: Vec<usize>,
    /// Rounds with each of these numbers
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Milliseconds that the write of a status takes
    #[arg(long, default_value_t = 10)]
    write_ms: u64,
    /// The file to write [default: target/bench/groups.json]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Results for one number of failing groups.
#[derive(Default)]
struct Measured {
    failing: usize,
    /// From the failure of a worker until the last worker of its group runs again.
    running: Times,
    /// From the failure of a worker until the coordinator knows that its group runs.
    known: Times,
    /// From the first failure until all failed groups are known to run.
    all: Times,
    /// Messages to workers of other groups.
    messages_to_others: u64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(
        args.groups > 0 && args.workers > 0 && args.rounds > 0,
        "nothing to measure"
    );
    ensure!(
        args.failing
            .iter()
            .all(|failing| (1..=args.groups).contains(failing)),
        "--failing: of {} groups 1 to {} may fail",
        args.groups,
        args.groups
    );
    raise_files()?;
    let mut scene = Scene::start(&args).await?;
    let mut all = Vec::new();
    for failing in &args.failing {
        all.push(scene.measure(&args, *failing).await?);
    }
    scene.end().await?;
    print(&args, &all);
    write(&args, &all)
}

struct Scene {
    hub: Child,
    fleet: Child,
    /// The generation of each group.
    generations: Vec<u64>,
    workers: usize,
    /// The group that fails first in the next round.
    next: usize,
    /// Folder of keys and tokens.
    _dir: tempfile::TempDir,
}

impl Scene {
    async fn start(args: &Args) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Every group has the same number of workers, so the last node may have fewer.
        let nodes = (args.groups * args.workers).div_ceil(EACH);
        token::issue(dir.path(), nodes)?;
        let place = dir.path().display().to_string();
        let shared = [
            ["--port".to_owned(), free_port()?.to_string()],
            ["--dir".to_owned(), place],
            ["--nodes".to_owned(), nodes.to_string()],
            ["--each".to_owned(), EACH.to_string()],
            ["--groups".to_owned(), args.groups.to_string()],
            ["--group-size".to_owned(), args.workers.to_string()],
        ]
        .concat();
        let write = ["--write-ms".to_owned(), args.write_ms.to_string()];
        let hub = Child::start(&[&["hub".to_owned()], &shared[..], &write].concat()).await?;
        let fleet = Child::start(&[&["fleet".to_owned()], &shared[..]].concat()).await?;
        let mut scene = Self {
            hub,
            fleet,
            generations: vec![0; args.groups],
            workers: args.workers,
            next: 0,
            _dir: dir,
        };
        scene.hub.order(Order::Await { connected: nodes }).await?;
        scene
            .hub
            .wait_for(|event| matches!(event, BenchEvent::Connected { .. }).then_some(()))
            .await
            .context("all nodes connect")?;
        scene.hub.order(Order::Start).await?;
        for _ in 0..args.groups {
            scene
                .fleet
                .wait_for(|event| matches!(event, BenchEvent::Runs { .. }).then_some(()))
                .await
                .context("all groups start")?;
        }
        tokio::time::sleep(REST).await;
        scene.hub.order(Order::Coordinate).await?;
        for _ in 0..args.groups {
            scene
                .hub
                .wait_for(|event| matches!(event, BenchEvent::Coordinating).then_some(()))
                .await
                .context("all coordinators begin")?;
        }
        Ok(scene)
    }

    async fn measure(&mut self, args: &Args, failing: usize) -> Result<Measured> {
        let mut measured = Measured {
            failing,
            ..Measured::default()
        };
        for _ in 0..args.rounds {
            tokio::time::sleep(PAUSE).await;
            self.round(&mut measured).await?;
        }
        Ok(measured)
    }

    /// Makes a worker of each of some groups fail, of other groups each time.
    async fn round(&mut self, measured: &mut Measured) -> Result<()> {
        let count = self.generations.len();
        let before = self.messages().await?;
        // Neighbouring groups share nodes, so failing groups are spread out.
        let stride = count / measured.failing;
        let failing: Vec<usize> = (0..measured.failing)
            .map(|number| (self.next + number * stride) % count)
            .collect();
        self.next += 1;
        for group in &failing {
            let worker = group * self.workers + self.next % self.workers;
            self.fleet.order(Order::Fail { worker }).await?;
            let generation = self.generations.get_mut(*group).context("a group")?;
            *generation += 1;
        }
        let (failed, ran) = self.in_fleet(failing.len()).await?;
        let known = self.known(failing.len()).await?;
        for group in &failing {
            let of = |times: &[u64]| times.get(*group).copied().context("a group");
            measured.running.add(of(&failed)?, of(&ran)?);
            measured.known.add(of(&failed)?, of(&known)?);
        }
        let first = failed.iter().filter(|at| **at > 0).min();
        let last = known.iter().max();
        measured
            .all
            .add(*first.context("a failure")?, *last.context("a restart")?);
        let after = self.messages().await?;
        let others = (0..count).filter(|group| !failing.contains(group));
        measured.messages_to_others += others
            .map(|group| after.get(group).unwrap_or(&0) - before.get(group).unwrap_or(&0))
            .sum::<u64>();
        Ok(())
    }

    /// The times of failure and of the restart of each failed group; 0 for other groups.
    async fn in_fleet(&mut self, failing: usize) -> Result<(Vec<u64>, Vec<u64>)> {
        let mut failed = vec![0; self.generations.len()];
        let mut ran = failed.clone();
        for _ in 0..2 * failing {
            let wanted = &self.generations;
            let (is_failure, group, at) = self
                .fleet
                .wait_for(|event| match event {
                    BenchEvent::Failed { group, at } => Some((true, group, at)),
                    BenchEvent::Runs {
                        group,
                        generation,
                        at,
                    } if wanted.get(group) == Some(&generation) => Some((false, group, at)),
                    _ => None,
                })
                .await
                .context("groups restart")?;
            let times = if is_failure { &mut failed } else { &mut ran };
            *times.get_mut(group).context("a group")? = at;
        }
        Ok((failed, ran))
    }

    /// The time at which the coordinator of each failed group knew that all run.
    async fn known(&mut self, failing: usize) -> Result<Vec<u64>> {
        let mut known = vec![0; self.generations.len()];
        for _ in 0..failing {
            let wanted = &self.generations;
            let (group, at) = self
                .hub
                .wait_for(|event| match event {
                    BenchEvent::Synced {
                        group,
                        generation,
                        at,
                        ..
                    } if wanted.get(group) == Some(&generation) => Some((group, at)),
                    _ => None,
                })
                .await
                .context("restarts are known")?;
            *known.get_mut(group).context("a group")? = at;
        }
        Ok(known)
    }

    /// The number of messages to the workers of each group so far.
    async fn messages(&mut self) -> Result<Vec<u64>> {
        let mut counts = vec![0; self.generations.len()];
        self.fleet.order(Order::Count).await?;
        for _ in 0..counts.len() {
            let (group, times) = self
                .fleet
                .wait_for(|event| match event {
                    BenchEvent::Messages { group, times } => Some((group, times)),
                    _ => None,
                })
                .await
                .context("the messages to workers")?;
            *counts.get_mut(group).context("a group")? = times;
        }
        Ok(counts)
    }

    async fn end(mut self) -> Result<()> {
        self.fleet.kill().await?;
        self.hub.kill().await
    }
}

fn print(args: &Args, all: &[Measured]) {
    println!(
        "\n{} groups of {} workers, {EACH} workers on a node: ms, median (p99)\n",
        args.groups, args.workers
    );
    let table = Table::begin(all, 52, |of| format!("{} at once", of.failing));
    let times = |times: &Times| format!("{:.0} ({:.0})", times.percentile(50), times.percentile(99));
    table.row("failure until the group's last worker runs", |of| {
        times(&of.running)
    });
    table.row("failure until all of the group are known to run", |of| {
        times(&of.known)
    });
    table.row("first failure until all groups are known to run", |of| {
        times(&of.all)
    });
    table.row("messages to workers of other groups", |of| {
        of.messages_to_others.to_string()
    });
}

fn write(args: &Args, all: &[Measured]) -> Result<()> {
    let failing: Vec<_> = all
        .iter()
        .map(|of| {
            json!({
                "at_once": of.failing, "running": of.running.json(), "known": of.known.json(), "all": of.all.json(),
                "others_told": of.messages_to_others,
            })
        })
        .collect();
    let results = json!({
        "groups": args.groups, "workers": args.workers, "rounds": args.rounds, "write_ms": args.write_ms,
        "cores": std::thread::available_parallelism()?, "load_after": load(), "failing": failing,
    });
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| target_dir().join("bench/groups.json"));
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&out, serde_json::to_string_pretty(&results)? + "\n")?;
    println!("written to {}", out.display());
    Ok(())
}
