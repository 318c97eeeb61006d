//! Kills a worker, and measures from outside until new processes of all workers run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use lockstep_integration::cluster::{Cluster, default_name, node_name};
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Access, Group, Manifest, Namespace, eventually, stopwatch};
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use crate::{Results, pods, read, write};

/// Workers of each JobSet on one node.
const WORKERS: usize = 4;
/// Workers on each of several nodes.
const ON_EACH: u32 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Restarts in place
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Recreations, and restarts by only the kubelet
    #[arg(long, default_value_t = 3)]
    slow_rounds: u64,
    /// Nodes that workers are spread over; with more than one, only restarts in place are measured
    #[arg(long, default_value_t = 1)]
    nodes: u8,
    /// Skip lost pods, which take 4 minutes
    #[arg(long)]
    no_pods: bool,
}

/// Runs the benchmark in the shared cluster, in which the product is installed. Results for several
/// nodes are added to those for one.
pub(crate) async fn run(args: Args) -> Result<()> {
    println!("etcd runs without fsync here, and everything shares one machine.");
    let cluster = Cluster::attach(&default_name()).await?;
    let there = cluster.nodes();
    ensure!(
        there >= args.nodes,
        "the cluster has {there} of {} nodes",
        args.nodes
    );
    let namespace = namespace(&cluster).await?;
    let mut results = Results::new();
    let measured = if args.nodes > 1 {
        results = read("restart")?;
        on_several(&namespace, &args, &mut results).await
    } else {
        on_one_node(&namespace, &args, &mut results).await
    };
    namespace.delete().await?;
    measured?;
    write("restart", &Value::Object(results))
}

async fn namespace(cluster: &Cluster) -> Result<Namespace> {
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    access.namespace("bench").await
}

/// Waits until this many nodes have a ready daemon. Containers that start earlier get no agent.
async fn daemons(namespace: &Namespace, nodes: u8) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(namespace.access.client.clone(), pods::PRODUCT);
    eventually("every node has its daemon", START, async || {
        let status = sets.get("lockstep-node-daemon").await?.status;
        let ready = status.map_or(0, |status| status.number_ready);
        ensure!(ready >= nodes.into(), "{ready} of {nodes} have");
        Ok(())
    })
    .await
}

async fn on_one_node(namespace: &Namespace, args: &Args, results: &mut Results) -> Result<()> {
    let progress = Progress::new();
    let here = json!({"nodeSelector": {"kubernetes.io/hostname": node_name(1)}});
    let manifest = Manifest::new(4, IDLE).named("process").pod(here);
    let process = in_place(namespace, &manifest, WORKERS, args.rounds).await?;
    progress.say(format_args!("{} restarts in place", args.rounds));
    let recreate = unsupervised("recreate", WORKERS, namespace, args.slow_rounds, &progress).await?;
    let kubelet = unsupervised("kubelet", 1, namespace, args.slow_rounds, &progress).await?;
    println!(
        "\nOne of {WORKERS} workers on one node is killed: until {WORKERS} new ones run (the kubelet: until the killed one runs again)"
    );
    head();
    row("in place, by process (Lockstep)", &process);
    row("recreation of all Jobs (Recreate)", &recreate);
    row("only the kubelet, one container, with back-off", &kubelet);
    let fifth = |times: &[Duration]| stopwatch::median(times).as_secs_f64() * 1e3;
    if let (Some(head), Some(tail)) = (process.get(..5), process.get(process.len().saturating_sub(5)..)) {
        let (head, tail) = (fifth(head), fifth(tail));
        println!(
            "in place: first five {head:.1} ms, last five {tail:.1} ms, ratio {:.2} (should be at most 1.2)",
            tail / head
        );
    }
    for (how, times) in [
        ("process", &process),
        ("recreate", &recreate),
        ("kubelet", &kubelet),
    ] {
        results.insert(how.to_owned(), json!(millis(times)));
    }
    if args.no_pods {
        return Ok(());
    }

    let lost = pods::deleted(namespace, &progress).await?;
    println!("\nA pod is deleted four times in a row: until all {WORKERS} workers run again, in seconds");
    let hows = [
        ("replaced", "replaced at once (Lockstep)"),
        ("jobController", "only by the Job controller (opt-out)"),
        ("recreate", "recreation of all Jobs (Recreate)"),
    ];
    let mut all = Results::new();
    for ((key, how), times) in hows.into_iter().zip(&lost) {
        let shown: String = times
            .iter()
            .map(|time| format!("{:>9.1}", time.as_secs_f64()))
            .collect();
        println!("{how:<44}{shown}");
        all.insert(key.to_owned(), json!(millis(times)));
    }
    results.insert("podLost".to_owned(), Value::Object(all));
    Ok(())
}

async fn on_several(namespace: &Namespace, args: &Args, results: &mut Results) -> Result<()> {
    daemons(namespace, args.nodes).await?;
    let count = ON_EACH * u32::from(args.nodes);
    let evenly = json!({
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "nodes"}},
    });
    let manifest = Manifest::new(count, IDLE)
        .named("nodes")
        .pod(json!({"topologySpreadConstraints": [evenly]}));
    let times = in_place(namespace, &manifest, count as usize, args.rounds).await?;
    println!(
        "\nOne of {count} workers on {} nodes is killed: until {count} new ones run",
        args.nodes
    );
    head();
    row("in place, by process (Lockstep)", &times);
    let result = json!({"nodes": args.nodes, "workers": count, "process": millis(&times)});
    results.insert("severalNodes".to_owned(), result);
    Ok(())
}

async fn in_place(
    namespace: &Namespace,
    manifest: &Manifest,
    count: usize,
    rounds: u64,
) -> Result<Vec<Duration>> {
    let group = Group::apply(namespace, manifest).await?;
    let mut workers = group.running(count).await?;
    let mut times = Vec::new();
    for generation in 1..=rounds {
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        let turn = usize::try_from(generation)? % count;
        let victim = workers.get(turn).context("a worker is missing")?.process;
        times.push(stopwatch::kill_in_place(workers.clone(), victim, START).await?);
        workers = group.restarted_in_place(&workers, generation).await?;
    }
    pods::remove(&group).await?;
    Ok(times)
}

/// Measures without the agent. The kill of a worker leads to a recreation of all Jobs (`fresh` =
/// all workers), or to the kubelet's restart of that container (`fresh` = 1).
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
    // The worker's sleep is found by its unique number. The shell ends at once on SIGTERM.
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
        // The one that was restarted last, so that the kubelet's back-off grows.
        let victim = *old
            .iter()
            .max_by_key(|process| process.start)
            .context("no worker")?;
        let args = marked.map(str::to_owned).to_vec();
        times.push(stopwatch::kill_and_find(args, fresh, old, victim, START).await?);
        progress.say(format_args!("{how}: round {round} of {rounds}"));
    }
    pods::remove(&group).await?;
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

fn head() {
    println!(
        "{:<44}{:>7}{:>12}{:>12}{:>12}{:>12}",
        "", "rounds", "first", "median", "p99", "slowest"
    );
}

fn row(how: &str, times: &[Duration]) {
    let shown = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    println!(
        "{how:<44}{:>7}{:>12}{:>12}{:>12}{:>12}",
        times.len(),
        shown(times.first().copied().unwrap_or_default()),
        shown(stopwatch::median(times)),
        shown(stopwatch::p99(times)),
        shown(times.iter().max().copied().unwrap_or_default())
    );
}

fn millis(times: &[Duration]) -> Vec<f64> {
    times
        .iter()
        .map(|time| (time.as_secs_f64() * 1e5).round() / 1e2)
        .collect()
}
