//! Kills workers of a training while standbys are ready and while there are none, in turn, and
//! measures the time until every rank does steps again.

mod busy;
mod overhead;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use lockstep_integration::harness::{Namespace, stopwatch};
use lockstep_integration::image::{self, Image, ImageError};
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use self::busy::Busy;
use crate::ddp::in_namespace;
use crate::ddp::job::{Example, Training, WORKERS};
use crate::{Results, read, write};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is trained; each needs its image
    #[arg(value_enum, default_value = "script")]
    programs: Vec<Program>,
    /// Restarts of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=50))]
    rounds: u64,
    /// Number of processes that compute all the time beside it
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=64))]
    busy: u8,
    /// Measure instead how many steps a second ready standbys cost, in this number of pairs
    #[arg(long, value_name = "PAIRS", num_args = 0..=1, default_missing_value = "8")]
    overhead: Option<u32>,
    /// Folder of the manifests
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"))]
    examples: PathBuf,
}

/// A program that is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    /// PyTorch 1.13: four pods, one rank each
    Script,
    /// The same with PyTorch 2.6 and Python 3.13
    Torch2,
    /// torchrun of PyTorch 2.6: two pods, two ranks each
    Torchrun,
    /// JAX: one pod
    Jax,
}

impl Program {
    const fn example(self) -> Example {
        match self {
            Self::Script => Example::script("pytorch-ddp-standby"),
            Self::Torch2 => Example {
                adapted: &[("localhost/torch:1", "localhost/torch:2")],
                ..Example::script("pytorch-ddp-standby")
            },
            Self::Torchrun => Example {
                name: "pytorch-ddp-torchrun",
                pods: 2,
                ranks: 2,
                adapted: &[],
            },
            Self::Jax => Example {
                name: "jax-standby",
                pods: 1,
                ranks: 1,
                adapted: &[],
            },
        }
    }

    async fn image(self) -> Result<Image, ImageError> {
        match self {
            Self::Script => image::torch().await,
            Self::Torch2 | Self::Torchrun => image::torch2().await,
            Self::Jax => image::jax().await,
        }
    }

    /// What the names of its results begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Script => "",
            Self::Torch2 => "torch2_",
            Self::Torchrun => "torchrun_",
            Self::Jax => "jax_",
        }
    }
}

/// Runs the benchmark. Results of other programs are kept.
pub(crate) async fn run(args: Args) -> Result<()> {
    for program in &args.programs {
        let image = program.image().await?;
        let measured = in_namespace(&image, async |namespace| {
            let folder = &args.examples;
            if let Some(pairs) = args.overhead {
                return overhead::measure(namespace, folder, program.example(), pairs).await;
            }
            let _busy = Busy::start(args.busy)?;
            measure(namespace, &args, *program).await
        })
        .await?;
        let mut results = read("warm")?;
        results.insert("workers".to_owned(), json!(WORKERS));
        results.extend(measured);
        write("warm", &Value::Object(results))?;
    }
    Ok(())
}

async fn measure(namespace: &Namespace, args: &Args, program: Program) -> Result<Results> {
    let progress = Progress::new();
    let example = program.example();
    let mut training = Training::start(namespace, &args.examples, example).await?;
    // Rank 0 has saved its state once.
    training.reaches(1).await?;
    training.saves().await?;
    let (mut cold, mut standby) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let victim = usize::try_from(round)? % example.pods;
        training.without_standbys().await?;
        cold.push(restart(&mut training, victim, 0).await?);
        training.standbys_are_ready().await?;
        let all = example.pods * example.standbys();
        standby.push(restart(&mut training, victim, all).await?);
        if let (Some(cold), Some(standby)) = (cold.last(), standby.last()) {
            progress.say(format_args!(
                "{program:?}, round {}: every rank does steps after {cold:.2?} cold, and after {standby:.2?} from standbys",
                round + 1,
            ));
        }
    }
    training.remove().await?;
    let busy = if args.busy > 0 { "busy_" } else { "" };
    Ok(results(&format!("{busy}{}", program.prefix()), &cold, &standby))
}

/// Restarts in place, and expects this number of processes from standbys. Returns the time until
/// every rank has done a step.
async fn restart(training: &mut Training, victim: usize, standbys: usize) -> Result<Duration> {
    let restart = training.restart(victim).await?;
    ensure!(
        (restart.new_pods, restart.new_containers) == (0, 0),
        "pods or containers are new"
    );
    ensure!(
        restart.warm == standbys,
        "{} processes began from standbys instead of {standbys}",
        restart.warm
    );
    Ok(restart.stepped)
}

fn results(prefix: &str, cold: &[Duration], standby: &[Duration]) -> Results {
    let millis = |times: &[Duration]| times.iter().map(Duration::as_millis).collect::<Vec<_>>();
    for (what, times) in [("cold", cold), ("from standbys", standby)] {
        println!(
            "{prefix}{what:<16}median {:>6} ms of {:?}",
            stopwatch::median(times).as_millis(),
            millis(times)
        );
    }
    let ratio = stopwatch::median(cold).as_secs_f64() / stopwatch::median(standby).as_secs_f64();
    println!("{ratio:.1} times faster");
    [
        (format!("{prefix}cold_ms"), json!(millis(cold))),
        (format!("{prefix}standby_ms"), json!(millis(standby))),
        (format!("{prefix}ratio"), json!(ratio)),
    ]
    .into_iter()
    .collect()
}
