//! Replays one seed with a trace, or runs many.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use lockstep_simulation::{Failure, replay, soak};

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
        Command::Replay { seed } => {
            let outcome = replay(seed);
            for line in &outcome.trace {
                println!("{line}");
            }
            match outcome.violation {
                None => {
                    println!("seed {seed}: well after {} events", outcome.events);
                    ExitCode::SUCCESS
                }
                Some(violation) => {
                    println!("seed {seed}: {violation}");
                    ExitCode::FAILURE
                }
            }
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
                report.alone,
                report.requested,
                report.stops,
                report.failures.len()
            );
            if report.failures.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
