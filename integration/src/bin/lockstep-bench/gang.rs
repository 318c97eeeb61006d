//! Measures the time until all pods of a large JobSet are bound to hollow nodes, with a gang and
//! without.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, ControlPlane, Webhooks, eventually, hollow, stopwatch};
use lockstep_integration::host::target_dir;
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use crate::write;

/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(300);
/// CPUs of a node, which has room for one pod.
const CPUS: u32 = 8;
/// The gang backend. `None`: pods start one by one.
const STARTS: [(&str, Option<&str>); 3] = [
    ("no gang", None),
    ("PodGroup", Some("PodGroup")),
    ("Gates", Some("Gates")),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of pods, and of nodes
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Number of Jobs with these pods
    #[arg(long, default_value_t = 10)]
    jobs: usize,
    /// Rounds of each kind; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The control plane [default: the release build]
    #[arg(long)]
    program: Option<PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(
        args.rounds > 0 && args.jobs > 0 && args.pods.is_multiple_of(args.jobs),
        "nothing to measure, or Jobs of different size"
    );
    let progress = Progress::new();
    let cluster = Cluster::up(Spec::api_server().with_controllers().with_scheduler()).await?;
    let program = args
        .program
        .clone()
        .unwrap_or_else(|| target_dir().join("release/lockstep-control-plane"));
    std::fs::create_dir_all(target_dir().join("bench"))?;
    let log = target_dir().join("bench/control-plane.log");
    let control_plane =
        ControlPlane::start(&program, &cluster.kubeconfig(), &log, Webhooks::Served, &[]).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("bench").await?.name;
    hollow::create_nodes(&access.client, "bench", args.pods, CPUS).await?;
    let mut times = vec![Vec::new(); STARTS.len()];
    for round in 1..=args.rounds {
        for (times, (name, backend)) in times.iter_mut().zip(STARTS) {
            let before = control_plane.usage()?.cpu;
            let time = bound(&access.client, &namespace, &args, backend).await?;
            let cpu = control_plane.usage()?.cpu - before;
            progress.say(format_args!(
                "round {round} of {}, {name}: {:.2} s, {cpu:.2} s of our CPU time",
                args.rounds,
                time.as_secs_f64()
            ));
            times.push(time);
        }
    }
    let peak = control_plane.usage()?.peak;
    control_plane.stop().await?;
    report(&args, &times, peak)
}

/// The time from the JobSet's creation until all its pods are bound.
async fn bound(client: &Client, namespace: &str, args: &Args, backend: Option<&str>) -> Result<Duration> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet"));
    let jobsets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut events = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()));
    let mut bound = HashSet::new();
    let mut start = None;
    let all = async {
        while let Some(event) = events.next().await {
            match event? {
                Event::InitDone => {
                    let jobset = serde_json::from_value(jobset(args, backend))?;
                    start = Some(Instant::now());
                    jobsets.create(&PostParams::default(), &jobset).await?;
                }
                Event::Apply(pod) if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) => {
                    bound.insert(pod.uid());
                    if bound.len() >= args.pods {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        bail!("the watch has ended")
    };
    let waited = tokio::time::timeout(LIMIT, all).await;
    waited.with_context(|| format!("{} of {} bound", bound.len(), args.pods))??;
    let time = start.context("not started")?.elapsed();
    clear(&jobsets, &pods).await?;
    Ok(time)
}

/// Removes everything before the next round. No kubelet ends the pods.
async fn clear(jobsets: &Api<DynamicObject>, pods: &Api<Pod>) -> Result<()> {
    jobsets.delete("gang", &DeleteParams::background()).await?;
    eventually("nothing is left", LIMIT, async || {
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete_collection(&at_once, &ListParams::default()).await?;
        let left = pods.list_metadata(&ListParams::default().limit(1)).await?;
        ensure!(left.items.is_empty(), "there are pods");
        ensure!(jobsets.get_opt("gang").await?.is_none(), "the JobSet is there");
        Ok(())
    })
    .await
}

fn jobset(args: &Args, backend: Option<&str>) -> Value {
    let each = args.pods / args.jobs;
    let gang = backend.map(|backend| json!({"backend": backend, "scheduleTimeoutSeconds": LIMIT.as_secs()}));
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "gang"},
        "spec": {
            "gang": gang,
            "replicatedJobs": [{
                "name": "workers",
                "replicas": args.jobs,
                "template": {"spec": {
                    "parallelism": each,
                    "completions": each,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "template": {"spec": {
                        "restartPolicy": "Never",
                        "containers": [{
                            "name": "worker",
                            "image": "none",
                            "resources": {"requests": {"cpu": CPUS.to_string()}},
                        }],
                    }},
                }},
            }],
        },
    })
}

fn report(args: &Args, times: &[Vec<Duration>], peak: f64) -> Result<()> {
    println!(
        "\nA JobSet of {} pods in {} Jobs on {} nodes, each with room for one: seconds from its creation until all are bound; {} rounds",
        args.pods, args.jobs, args.pods, args.rounds
    );
    println!("{:<12}{:>8}{:>8}{:>8}", "", "median", "min", "max");
    for ((name, _), times) in STARTS.iter().zip(times) {
        let median = stopwatch::median(times).as_secs_f64();
        let seconds = times.iter().map(Duration::as_secs_f64);
        let (min, max) = seconds.fold((f64::MAX, 0.0_f64), |(min, max), time| {
            (min.min(time), max.max(time))
        });
        println!("{name:<12}{median:>8.2}{min:>8.2}{max:>8.2}");
    }
    println!("peak memory of the control plane: {peak:.1} MiB");
    println!(
        "etcd runs without fsync here, the Job controller and kube-scheduler may make 1,000 requests a second, and everything shares one machine."
    );
    let seconds = |times: &Vec<Duration>| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
    write(
        "gang",
        &json!({
            "pods": args.pods,
            "jobs": args.jobs,
            "withoutGang": seconds(&times[0]),
            "podGroup": seconds(&times[1]),
            "gates": seconds(&times[2]),
            "peakMiB": peak,
        }),
    )
}
