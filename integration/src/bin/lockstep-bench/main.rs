//! `lockstep-bench`: measures the product.

mod controller;
mod pods;
mod process;
mod restart;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde_json::Value;

/// Measures Lockstep.
#[derive(Debug, Parser)]
#[command(name = "lockstep-bench", version)]
struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// One of four workers is killed on a real node: the time until four new ones run, seen from outside. Writes target/bench/restart.json
    Restart {
        /// Restarts in place
        #[arg(long, default_value_t = 20)]
        rounds: u64,
        /// Recreations, and restarts by kubelet alone
        #[arg(long, default_value_t = 3)]
        slow_rounds: u64,
    },
    /// Many JobSets are created at once on an API server without nodes: the time until all their Jobs exist, and what the control plane takes
    /// for it. Writes target/bench/controller.json
    Controller(controller::Args),
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Action::Restart { rounds, slow_rounds } => restart::run(rounds, slow_rounds).await,
        Action::Controller(args) => controller::run(args).await,
    }
}

/// The build's target directory.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    )
}

fn write(name: &str, results: &Value) -> Result<()> {
    let dir = target().join("bench");
    fs::create_dir_all(&dir)?;
    fs::write(
        dir.join(format!("{name}.json")),
        serde_json::to_string_pretty(results)? + "\n",
    )?;
    println!("written to target/bench/{name}.json");
    Ok(())
}
