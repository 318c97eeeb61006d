//! Kills ranks of a training with PyTorch's DistributedDataParallel (`examples/pytorch-ddp`), and
//! measures the time until every rank does steps again, from standbys, in place and with Recreate.

pub(crate) mod job;
mod log;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::cluster::Cluster;
use lockstep_integration::harness::{Access, Namespace, stopwatch};
use lockstep_integration::image::{self, Image};
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use self::job::{Example, Restart, Training, WORKERS};
use crate::write;

/// Number of steps. There are enough between two kills for all standbys to become ready.
const STEPS: u64 = 10_000;
/// The same in the manifest without standbys, with a line in the log for every fifth step.
const ADAPTED: &[(&str, &str)] = &[(
    "value: \"1500\"",
    "value: \"10000\"\n              - name: LOG_EVERY\n                value: \"5\"",
)];

/// Reads one duration of a restart.
type Time = fn(&Restart) -> Duration;

/// The durations that are shown.
const MOMENTS: [(&str, Time); 3] = [
    ("until every rank's program runs again", |restart| restart.started),
    ("until every rank has imported PyTorch", |restart| {
        restart.imported
    }),
    ("until every rank has done a step", |restart| restart.stepped),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Restarts of each kind, at evenly spaced steps
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
    rounds: u64,
    /// Folder of the manifests
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"))]
    examples: PathBuf,
}

/// How the job is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In place, from standbys, once they are ready.
    Standby,
    InPlace,
    Recreate,
}

impl Kind {
    const fn example(self) -> Example {
        match self {
            // As many steps as the others, and as many lines.
            Self::Standby => Example {
                adapted: &[
                    ("value: \"1000000\"", "value: \"10000\""),
                    ("value: \"50\"", "value: \"5\""),
                ],
                ..Example::script("pytorch-ddp-standby")
            },
            Self::InPlace => Example {
                adapted: ADAPTED,
                ..Example::script("pytorch-ddp")
            },
            Self::Recreate => Example {
                adapted: ADAPTED,
                ..Example::script("pytorch-ddp-recreate")
            },
        }
    }
}

/// Results of one job.
struct Run {
    restarts: Vec<Restart>,
    /// Steps that were done more than once.
    again: usize,
    /// For the results: time, step and loss, and the times of kills, in seconds since the first
    /// step.
    curve: Vec<[f64; 3]>,
    kills: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) async fn run(args: Args) -> Result<()> {
    let image = image::torch().await?;
    let measured = in_namespace(&image, async |namespace| measure(namespace, &args).await).await?;
    write("ddp", &measured)
}

/// Measures in a namespace of the shared cluster, in which the product is installed, and removes
/// the namespace.
pub(crate) async fn in_namespace<T>(
    image: &Image,
    measure: impl AsyncFnOnce(&Namespace) -> Result<T>,
) -> Result<T> {
    let cluster = Cluster::shared(1).await?;
    cluster.load_image(image).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("bench").await?;
    let measured = measure(&namespace).await;
    if measured.is_err() {
        eprintln!("{}", namespace.dump().await);
    }
    namespace.delete().await?;
    measured
}

async fn measure(namespace: &Namespace, args: &Args) -> Result<Value> {
    let standby = train(namespace, args, Kind::Standby).await?;
    let in_place = train(namespace, args, Kind::InPlace).await?;
    for restart in standby.restarts.iter().chain(&in_place.restarts) {
        ensure!(
            (restart.new_pods, restart.new_containers) == (0, 0),
            "pods or containers are new"
        );
    }
    let recreated = train(namespace, args, Kind::Recreate).await?;
    let runs = [&standby, &in_place, &recreated];
    println!("\nA rank of {WORKERS} is killed while it trains, in seconds (median, least, most)");
    row("", ["from standbys", "in place", "Recreate"].map(str::to_owned));
    for (what, time) in MOMENTS {
        row(what, runs.map(|run| shown(run, time)));
    }
    let most = |run: &Run, count: fn(&Restart) -> usize| {
        let most = run.restarts.iter().map(count).max().unwrap_or_default();
        format!("{most} of {WORKERS}")
    };
    row("new pods", runs.map(|run| most(run, |restart| restart.new_pods)));
    row(
        "steps done again, each with the same loss",
        runs.map(|run| run.again.to_string()),
    );
    Ok(json!({
        "workers": WORKERS,
        "standby": standby.json(),
        "inPlace": in_place.json(),
        "recreate": recreated.json(),
    }))
}

/// Runs a training to its end, with restarts in between.
async fn train(namespace: &Namespace, args: &Args, kind: Kind) -> Result<Run> {
    let progress = Progress::new();
    let example = kind.example();
    let name = example.name;
    let mut training = Training::start(namespace, &args.examples, example).await?;
    let mut restarts = Vec::new();
    for round in 1..=args.rounds {
        training.reaches(STEPS * round / (args.rounds + 1)).await?;
        if kind == Kind::Standby {
            training.standbys_are_ready().await?;
        }
        let restart = training.restart(usize::try_from(round - 1)? % WORKERS).await?;
        progress.say(format_args!(
            "{name}: rank {} killed after step {}; after {:.1?} all run, after {:.1?} all do steps, from step {} on",
            restart.rank, restart.step_before, restart.started, restart.stepped, restart.resumed
        ));
        restarts.push(restart);
    }
    training.ends().await?;
    let again = log::done_again(training.lines())?;
    let start = log::first_step(training.lines()).map_or(0.0, |line| line.time);
    let point = |line: &log::Line| Some([line.time - start, line.step? as f64, line.loss?]);
    let run = Run {
        kills: restarts.iter().map(|restart| restart.killed - start).collect(),
        curve: training.lines().iter().filter_map(point).collect(),
        restarts,
        again,
    };
    training.remove().await?;
    Ok(run)
}

impl Run {
    fn times(&self, time: Time) -> Vec<Duration> {
        self.restarts.iter().map(time).collect()
    }

    fn json(&self) -> Value {
        let seconds = |times: Vec<Duration>| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
        let steps = |step: fn(&Restart) -> u64| self.restarts.iter().map(step).collect::<Vec<_>>();
        json!({
            "started": seconds(self.times(|restart| restart.started)),
            "imported": seconds(self.times(|restart| restart.imported)),
            "stepped": seconds(self.times(|restart| restart.stepped)),
            "stepBefore": steps(|restart| restart.step_before),
            "resumed": steps(|restart| restart.resumed),
            "newPods": steps(|restart| restart.new_pods as u64),
            "again": self.again,
            "kills": self.kills,
            "curve": self.curve,
        })
    }
}

fn shown(run: &Run, time: Time) -> String {
    let times = run.times(time);
    let [median, least, most] = [
        stopwatch::median(&times),
        times.iter().min().copied().unwrap_or_default(),
        times.iter().max().copied().unwrap_or_default(),
    ]
    .map(|time| time.as_secs_f64());
    format!("{median:.2} ({least:.2} to {most:.2})")
}

fn row(what: &str, shown: [String; 3]) {
    let [standby, in_place, recreated] = shown;
    println!("{what:<44}{standby:>24}{in_place:>24}{recreated:>24}");
}
