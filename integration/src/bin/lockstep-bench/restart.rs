//! One of four workers is killed: the time until four new ones run, seen from outside.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::Cluster;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Access, Group, Manifest, Namespace, eventually, stopwatch};
use lockstep_integration::progress::Progress;
use serde_json::json;

use crate::{pods, write};

/// Workers of each JobSet.
const WORKERS: usize = 4;

/// Measures restarts in the shared cluster, where the product is installed.
pub(crate) async fn run(rounds: u64, slow_rounds: u64) -> Result<()> {
    let cluster = Cluster::shared(1).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("bench").await?;
    let measured = restart(&namespace, rounds, slow_rounds).await;
    let lost = pods::deleted(&namespace, &Progress::new()).await;
    namespace.delete().await?;
    let [process, recreate, kubelet] = measured?;
    let lost = lost?;

    println!(
        "\nOne of {WORKERS} workers is killed: until {WORKERS} new ones run (kubelet: until the killed one runs again)"
    );
    println!(
        "{:<44}{:>7}{:>12}{:>12}{:>12}",
        "", "rounds", "first", "median", "slowest"
    );
    row("in place, by process (Lockstep)", &process);
    row("recreation of all Jobs (Recreate)", &recreate);
    row("kubelet alone, one container, with back-off", &kubelet);
    let fifth = |times: &[Duration]| stopwatch::median(times).as_secs_f64() * 1e3;
    if let (Some(head), Some(tail)) = (process.get(..5), process.get(process.len().saturating_sub(5)..)) {
        let (head, tail) = (fifth(head), fifth(tail));
        println!(
            "in place: first five {head:.1} ms, last five {tail:.1} ms, ratio {:.2} (should be at most 1.2)",
            tail / head
        );
    }
    println!("\nA pod is deleted four times in a row: until all {WORKERS} workers run again, in seconds");
    let hows = [
        "replaced at once (Lockstep)",
        "by the Job controller alone (opt-out)",
        "recreation of all Jobs (Recreate)",
    ];
    for (how, times) in hows.iter().zip(&lost) {
        let shown: String = times
            .iter()
            .map(|time| format!("{:>9.1}", time.as_secs_f64()))
            .collect();
        println!("{how:<44}{shown}");
    }
    println!("etcd runs without fsync here, and everything shares one machine.");
    write(
        "restart",
        &json!({
            "process": millis(&process), "recreate": millis(&recreate), "kubelet": millis(&kubelet),
            "podLost": {
                "replaced": millis(&lost[0]), "jobController": millis(&lost[1]), "recreate": millis(&lost[2]),
            },
        }),
    )
}

async fn restart(namespace: &Namespace, rounds: u64, slow_rounds: u64) -> Result<[Vec<Duration>; 3]> {
    let progress = Progress::new();
    let process = in_place(namespace, rounds).await?;
    progress.say(format_args!("{rounds} restarts in place"));
    let recreate = unsupervised("recreate", WORKERS, namespace, slow_rounds, &progress).await?;
    let kubelet = unsupervised("kubelet", 1, namespace, slow_rounds, &progress).await?;
    Ok([process, recreate, kubelet])
}

async fn in_place(namespace: &Namespace, rounds: u64) -> Result<Vec<Duration>> {
    let group = Group::apply(namespace, &Manifest::new(4, IDLE).named("process")).await?;
    let mut workers = group.running(WORKERS).await?;
    let mut times = Vec::new();
    for generation in 1..=rounds {
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        let turn = usize::try_from(generation)? % WORKERS;
        let victim = workers.get(turn).context("a worker is missing")?.process;
        times.push(stopwatch::kill_in_place(workers.clone(), victim, START).await?);
        workers = group.restarted_in_place(&workers, generation).await?;
    }
    remove(&group).await?;
    Ok(times)
}

/// Without the agent. The kill of one worker is followed by a recreation of all Jobs (`fresh` = all workers), or by kubelet's
/// restart of that one container (`fresh` = 1).
async fn unsupervised(
    how: &str,
    fresh: usize,
    namespace: &Namespace,
    rounds: u64,
    progress: &Progress,
) -> Result<Vec<Duration>> {
    let (policy, backoff) = if fresh == 1 {
        ("OnFailure", 1000)
    } else {
        ("Never", 0)
    };
    // The worker's sleep is found by a number that no other process has. The shell ends at once when it is told to.
    let seconds = (1_000_000 + std::process::id() + u32::try_from(fresh)? * 10_000_000).to_string();
    let script = format!("trap 'exit 1' TERM; sleep {seconds} & wait $!; exit 1");
    let manifest = Manifest::new(4, &script)
        .named(how)
        .strategy("Recreate")
        .restart_policy(policy)
        .job(json!({"backoffLimit": backoff}));
    let group = Group::apply(namespace, &manifest).await?;
    let marked = ["sleep", seconds.as_str()];
    let mut times = Vec::new();
    for round in 1..=rounds {
        let old = all_run(&marked).await?;
        // The one that was restarted last, so that kubelet's back-off grows.
        let victim = *old
            .iter()
            .max_by_key(|process| process.start)
            .context("no worker")?;
        let args = marked.map(str::to_owned).to_vec();
        times.push(stopwatch::kill_and_find(args, fresh, old, victim, START).await?);
        progress.say(format_args!("{how}: round {round} of {rounds}"));
    }
    remove(&group).await?;
    Ok(times)
}

async fn all_run(marked: &[&str]) -> Result<Vec<Process>> {
    eventually("all workers run", START, async || {
        let found = process::running(marked);
        ensure!(found.len() == WORKERS, "{} run", found.len());
        Ok(found)
    })
    .await
}

pub(crate) async fn remove(group: &Group) -> Result<()> {
    group
        .namespace
        .kubectl(&["delete", "jobset", &group.name, "--cascade=foreground"])
        .await?;
    Ok(())
}

fn row(how: &str, times: &[Duration]) {
    let shown =
        |time: Option<&Duration>| format!("{:.1} ms", time.copied().unwrap_or_default().as_secs_f64() * 1e3);
    let median = stopwatch::median(times);
    println!(
        "{how:<44}{:>7}{:>12}{:>12}{:>12}",
        times.len(),
        shown(times.first()),
        shown(Some(&median)),
        shown(times.iter().max())
    );
}

fn millis(times: &[Duration]) -> Vec<f64> {
    times
        .iter()
        .map(|time| (time.as_secs_f64() * 1e5).round() / 1e2)
        .collect()
}
