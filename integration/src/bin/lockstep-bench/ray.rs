//! Runs RayJobs whose first attempt fails, retried in place and on a new cluster in turn. Measures
//! from the creation to the driver's first line, and from the end of one driver to the first line
//! of the next.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::Cluster;
use lockstep_integration::harness::{Access, Namespace, eventually, stopwatch};
use lockstep_integration::image;
use lockstep_integration::progress::Progress;
use serde_json::{Value, json};

use crate::write;

const LIMIT: Duration = Duration::from_secs(300);
/// Folder of the node in which drivers write their times, since files in a pod are lost with it.
const NOTES: &str = "/var/lib/lockstep-bench";
/// The driver: writes begin and end of each attempt, in ns since the Unix epoch. The first one
/// fails.
const DRIVER: &str = r#"python3 -c 'import os, sys, time
with open("/notes/times", "a") as notes:
    print(time.time_ns(), time.time_ns(), sep="\n", file=notes)
sys.exit(os.environ["RAYJOB_ATTEMPT"] == "0")'"#;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// RayJobs of each kind
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Workers beside the head
    #[arg(long, default_value_t = 1)]
    workers: u32,
}

/// Runs the benchmark in the shared cluster, in which the product is installed with `ray.enabled`.
pub(crate) async fn run(args: Args) -> Result<()> {
    let cluster = Cluster::shared(1).await?;
    cluster.load_image(&image::ray().await?).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let namespace = access.namespace("bench").await?;
    eventually("RayJobs are served", LIMIT, async || {
        namespace.kubectl(&["get", "rayjobs"]).await.map(drop)
    })
    .await?;
    let measured = measure(&cluster, &namespace, &args).await;
    namespace.delete().await?;
    write("ray", &measured?)
}

async fn measure(cluster: &Cluster, namespace: &Namespace, args: &Args) -> Result<Value> {
    let progress = Progress::new();
    let (mut first, mut in_place, mut new_cluster) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for (policy, retries) in [("InPlace", &mut in_place), ("NewCluster", &mut new_cluster)] {
            let name = format!("{}-{round}", policy.to_lowercase());
            let notes = cluster.node_path(1, &format!("{NOTES}/{}/{name}", namespace.name))?;
            let [start, retry] = job(namespace, &name, policy, args.workers, &notes).await?;
            progress.say(format_args!(
                "{name}: first line after {start:.1?}, retried after {retry:.1?}"
            ));
            first.push(start);
            retries.push(retry);
        }
    }
    println!(
        "\nA RayJob on a head and {} worker(s), of real Ray, in seconds",
        args.workers
    );
    println!("{:<60}{:>8}{:>8}{:>8}", "", "median", "least", "most");
    row("created, until the driver's first line", &first);
    row("failed, until the next driver's first line: in place", &in_place);
    row(
        "failed, until the next driver's first line: a new cluster",
        &new_cluster,
    );
    let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
    Ok(json!({
        "workers": args.workers,
        "created": seconds(&first),
        "inPlace": seconds(&in_place),
        "newCluster": seconds(&new_cluster),
    }))
}

/// Runs a RayJob to its end. Returns the time until its first driver runs, and that between two
/// drivers.
async fn job(
    namespace: &Namespace,
    name: &str,
    policy: &str,
    workers: u32,
    notes: &Path,
) -> Result<[Duration; 2]> {
    let host = PathBuf::from(NOTES).join(&namespace.name).join(name);
    let template = json!({"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "ray",
            "image": "localhost/ray:2",
            "resources": {"requests": {"cpu": "10m"}},
            "volumeMounts": [{"name": "notes", "mountPath": "/notes"}],
        }],
        "volumes": [{"name": "notes", "hostPath": {"path": host, "type": "DirectoryOrCreate"}}],
    }});
    let params = json!({"num-cpus": "1", "object-store-memory": "100000000"});
    let group =
        json!({"groupName": "small", "replicas": workers, "rayStartParams": params, "template": template});
    let manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": DRIVER,
            "backoffLimit": 1,
            "retryPolicy": policy,
            "waitForAllPodsHealthy": true,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": params, "template": template},
                "workerGroupSpecs": [group],
            },
        },
    });
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?;
    namespace
        .kubectl_with(&["create", "--filename", "-"], &manifest.to_string())
        .await?;
    eventually("the RayJob ends", LIMIT, async || {
        let path = [
            "--output",
            "jsonpath={.status.jobStatus}/{.status.jobDeploymentStatus}",
        ];
        let status = namespace
            .kubectl(&[&["get", "rayjob", name][..], &path].concat())
            .await?;
        ensure!(status == "SUCCEEDED/Complete", "{status}");
        Ok(())
    })
    .await?;
    let times = fs::read_to_string(notes.join("times")).with_context(|| notes.display().to_string())?;
    let times: Vec<Duration> = times
        .lines()
        .map(|line| Ok(Duration::from_nanos(line.parse()?)))
        .collect::<Result<_>>()?;
    namespace
        .kubectl(&["delete", "rayjob", name, "--cascade=foreground"])
        .await?;
    match times[..] {
        [first, failed, second, _] => Ok([first.saturating_sub(created), second.saturating_sub(failed)]),
        _ => anyhow::bail!("drivers noted {times:?}"),
    }
}

fn row(what: &str, times: &[Duration]) {
    let shown = |time: Duration| format!("{:.1}", time.as_secs_f64());
    println!(
        "{what:<60}{:>8}{:>8}{:>8}",
        shown(stopwatch::median(times)),
        shown(times.iter().min().copied().unwrap_or_default()),
        shown(times.iter().max().copied().unwrap_or_default())
    );
}
