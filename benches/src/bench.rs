//! The whole benchmark: sizes, blocks in which the designs take turns, the table and the file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use lockstep_integration::host::target_dir;
use serde_json::{Value, json};

use crate::child::raise_files;
use crate::design::{self, Block, Design};
use crate::output;
use crate::samples::{Samples, Times};
use crate::token;

/// Open files of a process, apart from one per connection.
const OTHER_FILES: usize = 200;
/// The designs and their names.
const DESIGNS: [(&str, Design); 6] = [
    ("Lockstep, 1 worker per node", Design::Lockstep { each: 1 }),
    ("Lockstep, 8 workers per node", Design::Lockstep { each: 8 }),
    ("Valkey's design", Design::Valkey { poll_ms: 0 }),
    ("Valkey's design as documented", Design::Valkey { poll_ms: 1000 }),
    ("Bare gRPC over TLS", Design::Bare { tls: true }),
    ("Bare gRPC, plain text", Design::Bare { tls: false }),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of workers, separated by commas; multiples of 8
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    nodes: Vec<usize>,
    /// Rounds of each kind
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Blocks that the rounds are divided into. Each block starts every design once, and kills its
    /// server once
    #[arg(long, default_value_t = 4)]
    blocks: usize,
    /// Restarts after which memory is read again
    #[arg(long, default_value_t = 100)]
    restarts: usize,
    /// Milliseconds that the write of a status takes
    #[arg(long, default_value_t = 10)]
    write_ms: u64,
    /// The file to write [default: target/bench/scale.json]
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(
        args.blocks > 0
            && args.rounds >= args.blocks
            && args
                .nodes
                .iter()
                .all(|nodes| *nodes > 0 && nodes.is_multiple_of(8)),
        "nothing to measure, or not 8 workers on every node"
    );
    let most = args.nodes.iter().max().copied().unwrap_or(0);
    let files = usize::try_from(raise_files()?)?;
    ensure!(
        most + OTHER_FILES <= files,
        "a process may open {files} files here: too few for {most} connections (ulimit -n)"
    );
    let dir = tempfile::tempdir()?;
    token::issue(dir.path(), most)?;
    let before = load();
    let mut sizes = Vec::new();
    for workers in &args.nodes {
        let samples = size(&args, dir.path(), *workers).await?;
        print(*workers, &samples);
        sizes.push((*workers, samples));
    }
    let plot = output::svg(&DESIGNS.map(|(name, _)| name), &sizes);
    let sizes: Vec<Value> = sizes
        .iter()
        .map(|(workers, samples)| of_size(*workers, samples))
        .collect();
    let results = json!({
        "rounds": args.rounds,
        "blocks": args.blocks,
        "restarts_before_memory": args.restarts,
        "write_ms": args.write_ms,
        "cores": std::thread::available_parallelism()?,
        "load_before": before,
        "load_after": load(),
        "sizes": sizes,
    });
    let out = args.out.unwrap_or_else(|| target_dir().join("bench/scale.json"));
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&out, serde_json::to_string_pretty(&results)? + "\n")?;
    let picture = out.with_extension("svg");
    fs::write(&picture, plot)?;
    println!("written to {} and {}", out.display(), picture.display());
    Ok(())
}

fn of_size(workers: usize, samples: &[Samples]) -> Value {
    let designs: serde_json::Map<String, Value> = DESIGNS
        .iter()
        .zip(samples)
        .map(|((name, _), samples)| ((*name).to_owned(), samples.json()))
        .collect();
    json!({"workers": workers, "designs": designs})
}

/// Measures all designs with this many workers, in turns.
async fn size(args: &Args, dir: &Path, workers: usize) -> Result<Vec<Samples>> {
    let mut samples: Vec<Samples> = DESIGNS.iter().map(|_| Samples::default()).collect();
    for block in 0..args.blocks {
        let last = block + 1 == args.blocks;
        let block = Block {
            workers,
            rounds: args.rounds * (block + 1) / args.blocks - args.rounds * block / args.blocks,
            restarts: if last { args.restarts } else { 0 },
            write_ms: args.write_ms,
        };
        for ((name, design), samples) in DESIGNS.iter().zip(&mut samples) {
            design::run(*design, dir, block, samples).await?;
            eprintln!(
                "{workers} workers, {name}: {} rounds, load {}",
                samples.trip.count(),
                load()
            );
        }
    }
    Ok(samples)
}

fn print(workers: usize, samples: &[Samples]) {
    let times = |times: &Times| {
        if times.count() == 0 {
            return "-".to_owned();
        }
        format!("{:.0} ({:.0})", times.percentile(50), times.percentile(99))
    };
    let number = |number: f64| {
        if number.is_finite() {
            format!("{number:.1}")
        } else {
            "-".to_owned()
        }
    };
    println!("\n{workers} workers: median (p99)\n");
    let row = |name: &str, cell: &dyn Fn(&Samples) -> String| {
        let cells: Vec<String> = samples
            .iter()
            .map(|samples| format!("{:>20}", cell(samples)))
            .collect();
        println!("{name:<44}{}", cells.join(""));
    };
    let names = [
        "Lockstep, 1 a node",
        "Lockstep, 8 a node",
        "Valkey",
        "Valkey, polled",
        "bare, TLS",
        "bare, plain text",
    ];
    println!("{:<44}{}", "", names.map(|name| format!("{name:>20}")).join(""));
    row("push, last has it, ms", &|of| times(&of.push));
    row("push, last runs it, ms", &|of| times(&of.raise));
    row("failure until all are known to run, ms", &|of| times(&of.trip));
    row("failure until the last runs, ms", &|of| times(&of.running));
    row(
        "decision until all are known parked, ms",
        &|of| match of.parked.percentile(50) {
            parked if parked > 0.0 => times(&of.parked),
            _ => "-".to_owned(),
        },
    );
    row("server CPU per push, us", &|of| number(of.push_cost.each()));
    row("server CPU per push and report, us", &|of| {
        number(of.raise_cost.each())
    });
    row("server CPU per stream and restart, us", &|of| {
        number(of.trip_cost.each())
    });
    row("clients' CPU per stream and restart, us", &|of| {
        number(of.fleet_cost.each())
    });
    row("server CPU, idle, % of a core", &|of| {
        number(of.load.percentile(50))
    });
    row("  while workers say a step a second", &|of| {
        number(of.load_with_steps.percentile(50))
    });
    row("  failure until all are known to run, ms", &|of| {
        times(&of.trip_with_steps)
    });
    row("server memory per stream, idle, KiB", &|of| {
        number(of.idle.percentile(50))
    });
    row("  after the rounds, KiB", &|of| number(of.busy.percentile(50)));
    row("  after more restarts, KiB", &|of| {
        number(of.restarted.percentile(50))
    });
    row("connect at first, ms", &|of| times(&of.connect));
    row("server killed until all are back, ms", &|of| times(&of.storm));
    row("  server CPU until then, per stream, us", &|of| {
        number(of.storm_cost.each())
    });
    row("  and a worker fails: until all run, ms", &|of| times(&of.served));
    row("  memory at most, of that before", &|of| {
        let ratio = of.storm_peak.percentile(50) / of.peak.percentile(50);
        if ratio.is_finite() {
            format!("{ratio:.2}")
        } else {
            "-".to_owned()
        }
    });
}

/// The load average of the machine.
pub(crate) fn load() -> String {
    fs::read_to_string("/proc/loadavg").map_or_else(|_| "?".to_owned(), |load| load.trim().to_owned())
}
