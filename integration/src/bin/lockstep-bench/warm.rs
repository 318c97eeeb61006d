//! Kills ranks of a training with PyTorch while standbys are ready and while there are none, in
//! turn, and measures the time until every rank does steps again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::harness::{Namespace, stopwatch};
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use crate::ddp::in_namespace;
use crate::ddp::job::{Restart, Training, WORKERS};
use crate::write;

/// The example.
const EXAMPLE: &str = "pytorch-ddp-standby";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Restarts of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// Folder of the manifests
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"))]
    examples: PathBuf,
}

/// Restarts of each kind.
#[derive(Default)]
struct Times {
    cold: Vec<Restart>,
    standby: Vec<Restart>,
}

/// Runs the benchmark.
pub(crate) async fn run(args: Args) -> Result<()> {
    let times = in_namespace(async |namespace| measure(namespace, &args).await).await?;
    write("warm", &results(&times))
}

async fn measure(namespace: &Namespace, args: &Args) -> Result<Times> {
    let progress = Progress::new();
    let mut training = Training::start(namespace, &args.examples, EXAMPLE).await?;
    // Rank 0 has saved its state once.
    training.reaches(100).await?;
    let mut times = Times::default();
    for round in 0..args.rounds {
        // Standbys are started when the job has run for a while, so there is none for this restart.
        let victim = usize::try_from(round)? % WORKERS;
        let cold = training.restart(victim).await?;
        training.standbys_are_ready(round + 1).await?;
        let standby = training.restart(victim).await?;
        progress.say(format_args!(
            "round {}: every rank does steps after {:.2?} cold, and after {:.2?} from standbys",
            round + 1,
            cold.stepped,
            standby.stepped
        ));
        for restart in [&cold, &standby] {
            ensure!(
                (restart.new_pods, restart.new_containers) == (0, 0),
                "pods or containers are new"
            );
        }
        times.cold.push(cold);
        times.standby.push(standby);
    }
    training.remove().await?;
    Ok(times)
}

fn results(times: &Times) -> Value {
    let stepped = |restarts: &[Restart]| restarts.iter().map(|restart| restart.stepped).collect::<Vec<_>>();
    let (cold, standby) = (stepped(&times.cold), stepped(&times.standby));
    let millis = |times: &[Duration]| times.iter().map(Duration::as_millis).collect::<Vec<_>>();
    for (what, times) in [("cold", &cold), ("from standbys", &standby)] {
        println!(
            "{what:<16}median {:>6} ms of {:?}",
            stopwatch::median(times).as_millis(),
            millis(times)
        );
    }
    let ratio = stopwatch::median(&cold).as_secs_f64() / stopwatch::median(&standby).as_secs_f64();
    println!("{ratio:.1} times faster");
    json!({"workers": WORKERS, "cold_ms": millis(&cold), "standby_ms": millis(&standby), "ratio": ratio})
}
