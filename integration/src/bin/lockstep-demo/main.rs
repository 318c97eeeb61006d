//! `lockstep-demo`: kills a worker of a running job and shows its restart, in place and by
//! recreation.
//!
//! The job is `examples/ring-allreduce.yaml`: four workers that need each other. Times are measured
//! from outside, by scanning `/proc` every millisecond, and shown beside those in the control
//! plane's events.

mod report;
mod ring;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use lockstep_integration::cluster::{Cluster, default_name};
use lockstep_integration::harness::{Access, Namespace};

use ring::{Restart, Ring};

/// Kills a worker of a running job and shows its restart, in place and by recreation.
#[derive(Debug, Parser)]
#[command(name = "lockstep-demo", version)]
struct Args {
    /// Name of the testbed's cluster, in which Lockstep is installed
    #[arg(long, default_value_t = default_name())]
    cluster: String,
    /// Number of restarts in place
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    restarts: u32,
    /// Folder of the manifests
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"))]
    examples: PathBuf,
    /// Leave the jobs running
    #[arg(long)]
    keep: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    let cluster = Cluster::attach(&args.cluster)
        .await
        .context("bring the cluster up with `make install`")?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("demo").await?;
    let shown = show(&args, &namespace).await;
    if shown.is_err() {
        eprintln!("{}", namespace.dump().await);
    }
    if !args.keep {
        namespace.delete().await?;
    }
    shown?;
    println!(
        "\nThe demo took {:.0} s. The cluster is still up:",
        start.elapsed().as_secs_f64()
    );
    println!("  export KUBECONFIG={}", access.kubeconfig.display());
    println!("  make cluster-down");
    Ok(())
}

async fn show(args: &Args, namespace: &Namespace) -> Result<()> {
    let in_place = run(
        "in place",
        &args.examples.join("ring-allreduce.yaml"),
        args.restarts,
        Ring::new(namespace, "ring"),
    )
    .await?;
    let recreated = run(
        "with Recreate",
        &args.examples.join("ring-allreduce-recreate.yaml"),
        1,
        Ring::new(namespace, "ring-recreate"),
    )
    .await?;
    report::compare(&in_place, &recreated);
    Ok(())
}

/// Starts the job, restarts it this many times, and removes it.
async fn run(how: &str, manifest: &Path, restarts: u32, ring: Ring) -> Result<Vec<Restart>> {
    let file = manifest.file_name().unwrap_or_default().to_string_lossy();
    println!("\n=== Restarts {how}: kubectl apply -f examples/{file}");
    ring.apply(manifest).await?;
    ring.runs().await?;
    println!(
        "{} workers sum vectors around a ring: {}",
        ring::WORKERS,
        ring.last_line(0).await?
    );
    let mut seen = Vec::new();
    for number in 0..restarts {
        let victim = (number as usize + 1) % ring::WORKERS;
        let restart = ring.restart(victim).await?;
        report::one(&restart, number + 1, restarts);
        seen.push(restart);
        ring.runs().await?;
    }
    ring.delete().await?;
    Ok(seen)
}
