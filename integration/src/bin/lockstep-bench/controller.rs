//! Measures the control plane with many JobSets at once and many watched pods, without nodes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, ControlPlane, Webhooks, eventually, hollow, stopwatch};
use lockstep_integration::host::target_dir;
use lockstep_integration::progress::Progress;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::write;

/// Jobs of each JobSet.
const JOBS: usize = 4;
/// Number of nodes of the watched pods, and CPUs of each.
const NODES: (usize, u32) = (1000, 8);
/// Concurrent requests of the benchmark.
const CREATORS: usize = 16;
/// The CRD of JobSets, for a controller that does not install it.
const CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml"
);
/// Interval between two polls.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before usage is read. It is not enough for everything to end: the Job controller creates
/// pods for minutes, and statuses follow.
const SETTLE: Duration = Duration::from_secs(2);
/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// JobSets to create at once, of four Jobs each
    #[arg(long, default_value_t = 1000)]
    jobsets: usize,
    /// Watched pods at the end
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Rounds, each on a new API server; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The control plane [default: the release build]
    #[arg(long)]
    program: Option<PathBuf>,
    /// The upstream controller to compare with, built from its own repository
    #[arg(long)]
    upstream: Option<PathBuf>,
}

/// What creates the Jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker<'a> {
    Lockstep(&'a Path),
    Upstream(&'a Path),
    /// The benchmark itself, without a controller: the floor that the API server sets.
    Benchmark,
}

/// Results of one round.
#[derive(Default)]
struct Round {
    /// Time until all Jobs exist, in seconds.
    seconds: f64,
    cpu: f64,
    peak: f64,
    /// With all pods watched.
    rss: f64,
    /// With a gang, too, for which all nodes and pods are read.
    rss_with_gang: f64,
    /// Only of Lockstep.
    writes: f64,
    requests: f64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.jobsets > 0, "nothing to measure");
    let progress = Progress::new();
    let program = args
        .program
        .clone()
        .unwrap_or_else(|| target_dir().join("release/lockstep-control-plane"));
    let makers = [
        Some(Maker::Lockstep(&program)),
        args.upstream.as_deref().map(Maker::Upstream),
        Some(Maker::Benchmark),
    ];
    let mut contest: Vec<(Maker<'_>, Vec<Round>)> = makers
        .into_iter()
        .flatten()
        .map(|maker| (maker, Vec::new()))
        .collect();
    for number in 1..=args.rounds {
        for (maker, rounds) in &mut contest {
            let round = round(&args, *maker).await?;
            let name = maker.name();
            progress.say(format_args!(
                "round {number} of {}, {name}: {:.2} s",
                args.rounds, round.seconds
            ));
            rounds.push(round);
        }
    }
    report(&args, &contest)
}

impl Maker<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Lockstep(_) => "Lockstep",
            Self::Upstream(_) => "upstream",
            Self::Benchmark => "no controller",
        }
    }

    async fn start(self, cluster: &Cluster, access: &Access) -> Result<Option<ControlPlane>> {
        std::fs::create_dir_all(target_dir().join("bench"))?;
        let (kubeconfig, log) = (cluster.kubeconfig(), target_dir().join("bench/control-plane.log"));
        Ok(match self {
            Self::Lockstep(program) => {
                Some(ControlPlane::start(program, &kubeconfig, &log, Webhooks::Disabled, &[]).await?)
            }
            Self::Upstream(program) => {
                access.kubectl(&["apply", "--server-side", "-f", CRD], "").await?;
                eventually("JobSets are served", LIMIT, async || {
                    access.kubectl(&["get", "jobsets"], "").await.map(drop)
                })
                .await?;
                Some(ControlPlane::start_upstream(program, &kubeconfig, &log).await?)
            }
            Self::Benchmark => None,
        })
    }
}

async fn round(args: &Args, maker: Maker<'_>) -> Result<Round> {
    let cluster = Cluster::up(Spec::api_server().with_controllers()).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let controller = maker.start(&cluster, &access).await?;
    let namespace = access.namespace("bench").await?.name;
    let jobs: Api<Job> = Api::namespaced(access.client.clone(), &namespace);
    let all = args.jobsets * JOBS;
    let Some(controller) = controller else {
        let started = Instant::now();
        create(&jobs, (0..all).map(job)).await?;
        return Ok(Round {
            seconds: started.elapsed().as_secs_f64(),
            ..Round::default()
        });
    };
    let is_lockstep = matches!(maker, Maker::Lockstep(_));
    let counter = async |name| {
        if is_lockstep {
            controller.counter(name, "").await
        } else {
            Ok(0.0)
        }
    };
    let (before, requests) = (controller.usage()?.cpu, counter(REQUESTS).await?);
    let started = Instant::now();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet"));
    let jobsets: Api<DynamicObject> = Api::namespaced_with(access.client.clone(), &namespace, &kind);
    let ((), ()) = tokio::try_join!(create(&jobsets, (0..args.jobsets).map(jobset)), until(&jobs, all))?;
    let seconds = started.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let after = controller.usage()?;
    let (writes, requests) = (counter(WRITES).await?, counter(REQUESTS).await? - requests);

    hollow::create_nodes(&access.client, "node", NODES.0, NODES.1).await?;
    let rss = watched(&controller, access.client, &namespace, args).await?;
    let rss_with_gang = if is_lockstep {
        with_gang(&controller, &jobsets).await?
    } else {
        0.0
    };
    controller.stop().await?;
    let count = args.jobsets as f64;
    Ok(Round {
        seconds,
        cpu: after.cpu - before,
        peak: after.peak,
        rss,
        rss_with_gang,
        writes: writes / count,
        requests: requests / count,
    })
}

const WRITES: &str = "lockstep_api_writes_total";
const REQUESTS: &str = "lockstep_api_requests_total";

/// Creates pods up to the wanted number, and returns the memory of the control plane that watches
/// them, in MiB.
async fn watched(control_plane: &ControlPlane, client: Client, namespace: &str, args: &Args) -> Result<f64> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let there = count(&pods).await?;
    create(&pods, (there..args.pods).map(|number| pod(number, args.jobsets))).await?;
    until(&pods, args.pods).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(control_plane.usage()?.rss)
}

/// Creates a JobSet with a gang that does not fit, and returns the memory of the control plane
/// then, in MiB.
async fn with_gang(control_plane: &ControlPlane, jobsets: &Api<DynamicObject>) -> Result<f64> {
    let mut waits = jobset(0);
    waits["metadata"]["name"] = json!("gang");
    waits["spec"]["gang"] = json!({"backend": "Gates"});
    waits["spec"]["replicatedJobs"][0]["replicas"] = json!(NODES.0);
    create(jobsets, std::iter::once(waits)).await?;
    eventually("the gang says what it waits for", LIMIT, async || {
        let jobset = jobsets.get("gang").await?;
        let message = jobset.data.pointer("/status/gangs/0/message");
        ensure!(message.is_some(), "{}", jobset.data["status"]);
        Ok(())
    })
    .await?;
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

/// The number of objects, from a list of one.
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
                "template": {"spec": job_spec()},
            }],
        },
    })
}

/// One of a JobSet's Jobs, without the JobSet.
fn job(number: usize) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("job-{number}")}, "spec": job_spec()})
}

fn job_spec() -> Value {
    json!({"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": {"spec": pod_spec()}})
}

fn pod(number: usize, jobsets: usize) -> Value {
    let jobset = format!("js-{}", number % jobsets);
    let mut spec = pod_spec();
    spec["nodeName"] = json!(format!("node-{}", number % NODES.0));
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

/// A pod like that of a training job.
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

fn report(args: &Args, contest: &[(Maker<'_>, Vec<Round>)]) -> Result<()> {
    let count = args.jobsets as f64;
    println!(
        "\n{} JobSets of {JOBS} Jobs, created at once by {CREATORS} clients; medians of {} rounds, in turn",
        args.jobsets, args.rounds
    );
    print!("{:<32}", "");
    for (maker, _) in contest {
        print!("{:>12}", maker.name());
    }
    println!();
    let row = |what: &str, of: &dyn Fn(&Round) -> f64| {
        print!("{what:<32}");
        for (_, rounds) in contest {
            match median(rounds, of) {
                0.0 => print!("{:>12}", ""),
                median => print!("{median:>12.1}"),
            }
        }
        println!();
    };
    row("seconds until all Jobs exist", &|round| round.seconds);
    row("Jobs per second", &|round| count * JOBS as f64 / round.seconds);
    row("CPU ms per JobSet", &|round| round.cpu / count * 1e3);
    row("peak memory, MiB", &|round| round.peak);
    row(&format!("MiB with {} pods watched", args.pods), &|round| {
        round.rss
    });
    row("the same with a gang", &|round| round.rss_with_gang);
    row("writes per JobSet", &|round| round.writes);
    row("API requests per JobSet", &|round| round.requests);
    println!("etcd runs without fsync here, and everything shares one machine.");
    let of_maker = |rounds: &[Round]| {
        let all = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
        json!({
            "secondsUntilAllJobsExist": all(|round| round.seconds),
            "cpuSeconds": all(|round| round.cpu),
            "peakMiB": all(|round| round.peak),
            "MiBWithPodsWatched": all(|round| round.rss),
            "MiBWithGang": all(|round| round.rss_with_gang),
            "writesPerJobSet": all(|round| round.writes),
            "requestsPerJobSet": all(|round| round.requests),
        })
    };
    let makers: serde_json::Map<_, _> = contest
        .iter()
        .map(|(maker, rounds)| (maker.name().to_owned(), of_maker(rounds)))
        .collect();
    write(
        "controller",
        &json!({"jobsets": args.jobsets, "jobs": args.jobsets * JOBS, "pods": args.pods, "rounds": makers}),
    )
}

fn median(rounds: &[Round], of: &dyn Fn(&Round) -> f64) -> f64 {
    let times: Vec<Duration> = rounds
        .iter()
        .map(|round| Duration::from_secs_f64(of(round)))
        .collect();
    stopwatch::median(&times).as_secs_f64()
}
