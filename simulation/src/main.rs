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
        /// Workers of a large group, as `large` has them. The seed decides otherwise.
        #[arg(long)]
        workers: Option<u32>,
    },
    /// Run seeds with large groups, one after the other, until one has failed.
    Large {
        /// How many seeds.
        #[arg(long, default_value_t = 4)]
        seeds: u64,
        /// Workers of each.
        #[arg(long, default_value_t = 2_000)]
        workers: u32,
    },
    /// Run many seeds, until all are through or ten have failed.
    Soak {
        /// How many.
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
            exit(is_well(seed, &outcome))
        }
        Command::Large { seeds, workers } => {
            let mut seeds = 0..seeds;
            exit(seeds.all(|seed| {
                let is_well = is_well(seed, &run_large(seed, workers));
                if !is_well {
                    println!("  cargo run -p lockstep-simulation -- replay {seed} --workers {workers}");
                }
                is_well
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
                "{} seeds, {} events, {} restarts ({} of one worker alone, {} of these asked for), {} containers stopped, {} failures in {seconds:.1} s",
                report.seeds,
                report.events,
                report.restarts,
                report.worker_restarts,
                report.requested,
                report.stops,
                report.failures.len()
            );
            exit(report.failures.is_empty())
        }
    }
}

/// Says how a seed has ended, and whether well.
fn is_well(seed: u64, outcome: &Outcome) -> bool {
    match &outcome.violation {
        None => println!("seed {seed}: well after {} events", outcome.events),
        Some(violation) => println!("seed {seed}: {violation}"),
    }
    outcome.violation.is_none()
}

fn exit(is_well: bool) -> ExitCode {
    match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
