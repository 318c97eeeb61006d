//! `lockstep-bench`: measures the product.

mod controller;
mod ddp;
mod gang;
mod pods;
mod ray;
mod restart;

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
    /// A worker is killed on a real node, or on one of several: the time until all run anew, seen from outside. A pod is deleted four times
    /// in a row. Writes target/bench/restart.json
    Restart(restart::Args),
    /// Many JobSets are created at once on an API server without nodes: the time until all their Jobs exist, and what the control plane takes
    /// for it. Writes target/bench/controller.json
    Controller(controller::Args),
    /// A JobSet of 1,000 pods on 1,000 nodes without machines: the time until all its pods are bound, with a gang and without. Writes
    /// target/bench/gang.json
    Gang(gang::Args),
    /// RayJobs of real Ray: from the creation to the driver's first line, and retries in place and on a new cluster. Writes
    /// target/bench/ray.json
    Ray(ray::Args),
    /// Training with PyTorch's DistributedDataParallel: a rank is killed, and the time until every rank has done a step again, in place and with
    /// Recreate. Writes target/bench/ddp.json
    Ddp(ddp::Args),
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Action::Restart(args) => restart::run(args).await,
        Action::Controller(args) => controller::run(args).await,
        Action::Gang(args) => gang::run(args).await,
        Action::Ray(args) => ray::run(args).await,
        Action::Ddp(args) => ddp::run(args).await,
    }
}

/// What was measured, by its name.
type Results = serde_json::Map<String, Value>;

/// What was written before; nothing where there is none.
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
