//! Replays one seed with a trace, or runs many.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use lockstep_simulation::{Failure, Outcome, replay, replay_large, run_large, soak};

/// The deterministic simulation of the restart protocol.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed and print what happens.
    Replay {
        /// The seed.
        seed: u64,
        /// Replay the large group of this many workers that `large` runs for this seed.
        #[arg(long)]
        workers: Option<u32>,
    },
    /// Run seeds with large groups, one after the other, until one fails.
    Large {
        /// Number of seeds.
        #[arg(long, default_value_t = 4)]
        seeds: u64,
        /// Number of workers in each group.
        #[arg(long, default_value_t = 2_000)]
        workers: u32,
    },
    /// Run many seeds until all have run or ten have failed.
    Soak {
        /// Number of seeds.
        #[arg(long, env = "SEEDS", default_value_t = 20_000)]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Replay { seed, workers } => {
            let outcome = workers.map_or_else(|| replay(seed), |workers| replay_large(seed, workers));
            for line in &outcome.trace {
                println!("{line}");
            }
            exit(print_outcome(seed, &outcome))
        }
        Command::Large { seeds, workers } => {
            let mut seeds = 0..seeds;
            exit(seeds.all(|seed| {
                let passed = print_outcome(seed, &run_large(seed, workers));
                if !passed {
                    println!("  cargo run -p lockstep-simulation -- replay {seed} --workers {workers}");
                }
                passed
            }))
        }
        Command::Soak { seeds, from } => {
            let began = Instant::now();
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let report = soak(from..from + seeds, threads, 10, |Failure { seed, violation }| {
                println!("seed {seed}: {violation}");
                println!("  cargo run -p lockstep-simulation -- replay {seed}");
            });
            let seconds = began.elapsed().as_secs_f64();
            println!(
                "{} seeds, {} events, {} restarts ({} worker restarts, {} of them requested), {} starts from a standby, {} ranks from one, {} containers stopped, {} failures in {seconds:.1} s",
                report.seeds,
                report.events,
                report.restarts,
                report.worker_restarts,
                report.requested,
                report.from_standby,
                report.ranks_from_standby,
                report.stops,
                report.failures.len()
            );
            exit(report.failures.is_empty())
        }
    }
}

/// Prints how a seed ended. Returns true if no invariant was violated.
fn print_outcome(seed: u64, outcome: &Outcome) -> bool {
    match &outcome.violation {
        None => println!("seed {seed}: passed after {} events", outcome.events),
        Some(violation) => println!("seed {seed}: {violation}"),
    }
    outcome.violation.is_none()
}

fn exit(passed: bool) -> ExitCode {
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
