//! Many JobSets at once on an API server without nodes, and many pods to watch.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, stopwatch};
use lockstep_integration::progress::Progress;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::process::ControlPlane;
use crate::{target, write};

/// Jobs of each JobSet.
const JOBS: usize = 4;
/// Objects that the benchmark creates at the same time.
const CREATORS: usize = 16;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long what is under way may take in the end. (The Job controller goes on making pods for minutes, and statuses follow.)
const SETTLE: Duration = Duration::from_secs(2);
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The upstream controller (08dfbdf) on this testbed: 500 JobSets of 4 Jobs, its defaults.
const UPSTREAM_JOBS_PER_SECOND: f64 = 2000.0 / 16.8;
const UPSTREAM_WRITES: f64 = 7.0;
const UPSTREAM_CPU_MILLIS: f64 = 3400.0 / 500.0;
const UPSTREAM_PEAK_MIB: f64 = 115.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// JobSets that are created at once, of four Jobs each
    #[arg(long, default_value_t = 1000)]
    jobsets: usize,
    /// Pods that are watched in the end
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How often; each time on a new API server. Medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The control plane [default: the release build]
    #[arg(long)]
    program: Option<PathBuf>,
}

/// What one round has shown.
struct Round {
    seconds: f64,
    writes: f64,
    requests: f64,
    cpu: f64,
    peak: f64,
    /// With all pods there.
    rss: f64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.jobsets > 0, "nothing to measure");
    let progress = Progress::new();
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let round = round(&args).await?;
        progress.say(format_args!(
            "round {number} of {}: {:.2} s",
            args.rounds, round.seconds
        ));
        rounds.push(round);
    }
    report(&args, &rounds)
}

async fn round(args: &Args) -> Result<Round> {
    let cluster = Cluster::up(Spec::api_server().with_controllers()).await?;
    let program = args
        .program
        .clone()
        .unwrap_or_else(|| target().join("release/lockstep-control-plane"));
    let log = target().join("bench/control-plane.log");
    std::fs::create_dir_all(target().join("bench"))?;
    let control_plane = ControlPlane::start(&program, &cluster.kubeconfig(), &log, false).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("bench").await?.name;
    let before = control_plane.usage()?.cpu;
    let (requests_before, started) = (control_plane.counter(REQUESTS, "").await?, Instant::now());

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet"));
    let jobsets: Api<DynamicObject> = Api::namespaced_with(access.client.clone(), &namespace, &kind);
    let jobs: Api<Job> = Api::namespaced(access.client.clone(), &namespace);
    let all = args.jobsets * JOBS;
    let ((), ()) = tokio::try_join!(create(&jobsets, (0..args.jobsets).map(jobset)), until(&jobs, all))?;
    let seconds = started.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let after = control_plane.usage()?;
    let writes = control_plane.counter(WRITES, "").await?;
    let requests = control_plane.counter(REQUESTS, "").await? - requests_before;

    let rss = watched(&control_plane, access.client, &namespace, args).await?;
    control_plane.stop().await?;
    let count = args.jobsets as f64;
    Ok(Round {
        seconds,
        writes: writes / count,
        requests: requests / count,
        cpu: after.cpu - before,
        peak: after.peak,
        rss,
    })
}

const WRITES: &str = "lockstep_api_writes_total";
const REQUESTS: &str = "lockstep_api_requests_total";

/// Creates pods until there are as many as wanted, and returns what the control plane takes to watch them, in MiB.
async fn watched(control_plane: &ControlPlane, client: Client, namespace: &str, args: &Args) -> Result<f64> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let there = count(&pods).await?;
    create(&pods, (there..args.pods).map(|number| pod(number, args.jobsets))).await?;
    until(&pods, args.pods).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(control_plane.usage()?.rss)
}

async fn create<K>(api: &Api<K>, manifests: impl Iterator<Item = Value>) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    stream::iter(manifests.map(Ok))
        .try_for_each_concurrent(CREATORS, async |manifest| {
            let object: K = serde_json::from_value(manifest)?;
            api.create(&PostParams::default(), &object).await?;
            Ok(())
        })
        .await
}

/// How many there are, without reading them.
async fn count<K>(api: &Api<K>) -> Result<usize>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let first = api.list_metadata(&ListParams::default().limit(1)).await?;
    let more = first.metadata.remaining_item_count.unwrap_or_default();
    Ok(first.items.len() + usize::try_from(more)?)
}

async fn until<K>(api: &Api<K>, wanted: usize) -> Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let started = Instant::now();
    loop {
        let there = count(api).await?;
        if there >= wanted {
            return Ok(());
        }
        ensure!(started.elapsed() < LIMIT, "{there} of {wanted} after {LIMIT:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

fn jobset(number: usize) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": format!("js-{number}")},
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": [{
                "name": "workers",
                "replicas": JOBS,
                "template": {"spec": {
                    "parallelism": 1,
                    "completions": 1,
                    "backoffLimit": 0,
                    "template": {"spec": pod_spec()},
                }},
            }],
        },
    })
}

fn pod(number: usize, jobsets: usize) -> Value {
    let jobset = format!("js-{}", number % jobsets);
    let mut spec = pod_spec();
    spec["nodeName"] = json!(format!("node-{}", number % 100));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("watched-{number}"),
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": jobset,
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-index": (number % JOBS).to_string(),
                "jobset.sigs.k8s.io/restart-attempt": "0",
                "batch.kubernetes.io/job-name": format!("{jobset}-workers-{}", number % JOBS),
                "batch.kubernetes.io/job-completion-index": "0",
            },
        },
        "spec": spec,
    })
}

/// What a training job's pod looks like.
fn pod_spec() -> Value {
    let env: Vec<Value> = (0..20)
        .map(|number| json!({"name": format!("SETTING_{number}"), "value": "a value of some length"}))
        .collect();
    json!({
        "restartPolicy": "Never",
        "containers": [{
            "name": "worker",
            "image": "registry.example/training/worker:1.2.3",
            "command": ["python3", "-m", "training.main", "--config", "/etc/training/config.yaml"],
            "env": env,
            "resources": {"limits": {"cpu": "8", "memory": "64Gi"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    })
}

fn report(args: &Args, rounds: &[Round]) -> Result<()> {
    let median = |of: fn(&Round) -> f64| {
        let times: Vec<Duration> = rounds
            .iter()
            .map(|round| Duration::from_secs_f64(of(round)))
            .collect();
        stopwatch::median(&times).as_secs_f64()
    };
    let count = args.jobsets as f64;
    let rate = count * JOBS as f64 / median(|round| round.seconds);
    let cpu = median(|round| round.cpu) / count * 1e3;
    let (writes, peak) = (median(|round| round.writes), median(|round| round.peak));
    println!(
        "\n{} JobSets of {JOBS} Jobs, created at once by {CREATORS} clients; medians of {} rounds",
        args.jobsets,
        rounds.len()
    );
    println!("{:<36}{:>12}{:>12}{:>10}", "", "Lockstep", "upstream", "ratio");
    let row = |what: &str, ours: f64, theirs: f64| {
        println!("{what:<36}{ours:>12.1}{theirs:>12.1}{:>10.2}", ours / theirs);
    };
    row("Jobs per second, until all exist", rate, UPSTREAM_JOBS_PER_SECOND);
    row("writes per JobSet", writes, UPSTREAM_WRITES);
    row("CPU ms per JobSet", cpu, UPSTREAM_CPU_MILLIS);
    row("peak memory, MiB", peak, UPSTREAM_PEAK_MIB);
    println!(
        "{:<36}{:>12.2}",
        "seconds until all Jobs exist",
        median(|round| round.seconds)
    );
    println!(
        "{:<36}{:>12.1}",
        "API requests per JobSet",
        median(|round| round.requests)
    );
    println!(
        "{:<36}{:>12.1}",
        format!("MiB with {} pods watched", args.pods),
        median(|round| round.rss)
    );
    println!(
        "upstream: measured on this testbed with 500 JobSets. etcd runs without fsync here, and everything shares one machine."
    );
    let all = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
    write(
        "controller",
        &json!({
            "jobsets": args.jobsets,
            "jobs": args.jobsets * JOBS,
            "pods": args.pods,
            "secondsUntilAllJobsExist": all(|round| round.seconds),
            "writesPerJobSet": all(|round| round.writes),
            "requestsPerJobSet": all(|round| round.requests),
            "cpuSeconds": all(|round| round.cpu),
            "peakMiB": all(|round| round.peak),
            "MiBWithPodsWatched": all(|round| round.rss),
        }),
    )
}
