//! `lockstep-bench`: benchmarks of the product.

mod controller;
mod ddp;
mod gang;
mod pods;
mod ray;
mod restart;
mod warm;

use std::fs;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lockstep_integration::host::target_dir;
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
    /// Kill workers on one or more real nodes, and measure until new ones run, from outside. Delete
    /// pods four times in a row. Writes target/bench/restart.json
    Restart(restart::Args),
    /// Create many JobSets at once without nodes, and measure until all Jobs exist, and the
    /// resources of the control plane. Writes target/bench/controller.json
    Controller(controller::Args),
    /// Create a JobSet of 1,000 pods on 1,000 hollow nodes, and measure until all pods are bound,
    /// with a gang and without. Writes target/bench/gang.json
    Gang(gang::Args),
    /// Run RayJobs with real Ray, and measure until the driver's first line, and retries in place
    /// and on a new cluster. Writes target/bench/ray.json
    Ray(ray::Args),
    /// Kill ranks of a training with PyTorch's DistributedDataParallel, and measure until every
    /// rank does steps again, from standbys, in place and with Recreate. Writes
    /// target/bench/ddp.json
    Ddp(ddp::Args),
    /// Kill workers of that training, or of others, with standbys and without, in turn, and measure
    /// until every rank does steps again. Writes target/bench/warm.json
    Warm(warm::Args),
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Action::Restart(args) => restart::run(args).await,
        Action::Controller(args) => controller::run(args).await,
        Action::Gang(args) => gang::run(args).await,
        Action::Ray(args) => ray::run(args).await,
        Action::Ddp(args) => ddp::run(args).await,
        Action::Warm(args) => warm::run(args).await,
    }
}

/// Writes results under a name.
type Results = serde_json::Map<String, Value>;

/// The results of an earlier run; empty if there are none.
fn read(name: &str) -> Result<Results> {
    match fs::read(target_dir().join("bench").join(format!("{name}.json"))) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Results::new()),
        Err(error) => Err(error.into()),
    }
}

fn write(name: &str, results: &Value) -> Result<()> {
    let dir = target_dir().join("bench");
    fs::create_dir_all(&dir)?;
    fs::write(
        dir.join(format!("{name}.json")),
        serde_json::to_string_pretty(results)? + "\n",
    )?;
    println!("written to target/bench/{name}.json");
    Ok(())
}
