//! Deletes a pod four times in a row, and measures each time until all workers run again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, Patch, PatchParams};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Namespace, eventually};
use lockstep_integration::progress::Progress;
use serde_json::json;

const WORKERS: usize = 4;
const ROUNDS: u64 = 4;
/// The Job controller's fourth back-off is 80 s.
const LIMIT: Duration = Duration::from_secs(200);
pub(crate) const PRODUCT: &str = "lockstep-system";
const DEPLOYMENT: &str = "lockstep-control-plane";
const FLAG: &str = "--replace-lost-pods=";

/// Times with pods replaced by the control plane, by the Job controller, and by a recreation of
/// Jobs.
pub(crate) async fn deleted(namespace: &Namespace, progress: &Progress) -> Result<[Vec<Duration>; 3]> {
    let replaced = in_place("pods", namespace, progress).await?;
    replaced_by(namespace, Replacer::JobController).await?;
    let job_controller = in_place("job-controller", namespace, progress).await;
    replaced_by(namespace, Replacer::ControlPlane).await?;
    let recreated = recreate(namespace, progress).await?;
    Ok([replaced, job_controller?, recreated])
}

async fn in_place(name: &str, namespace: &Namespace, progress: &Progress) -> Result<Vec<Duration>> {
    let manifest = Manifest::new(4, IDLE)
        .named(name)
        .annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", "10m")
        .pod(json!({"terminationGracePeriodSeconds": 1}));
    let group = Group::apply(namespace, &manifest).await?;
    let mut workers = group.running(WORKERS).await?;
    let mut times = Vec::new();
    for generation in 1..=ROUNDS {
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        let victim = workers.first().context("no worker")?.place.pod.clone();
        let start = delete(namespace, &victim).await?;
        workers = group.at_generation(&workers, generation, LIMIT).await?;
        times.push(start.elapsed());
        progress.say(format_args!("{name}: pod {generation} of {ROUNDS}"));
    }
    remove(&group).await?;
    Ok(times)
}

async fn recreate(namespace: &Namespace, progress: &Progress) -> Result<Vec<Duration>> {
    let manifest = Manifest::new(4, "trap 'exit 1' TERM; sleep 1000000 & wait $!; exit 1")
        .named("recreated")
        .strategy("Recreate")
        .restart_policy("Never")
        .job(json!({"backoffLimit": 0}))
        .pod(json!({"terminationGracePeriodSeconds": 1}));
    let group = Group::apply(namespace, &manifest).await?;
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let start = match running(&group).await?.first() {
            Some(pod) if round > 0 => delete(namespace, pod).await?,
            _ => Instant::now(),
        };
        eventually("all pods of the attempt run", LIMIT, async || {
            let attempt = group.status().await?["restarts"].as_u64().unwrap_or_default();
            ensure!(attempt == round, "attempt {attempt}");
            let pods = running(&group).await?;
            ensure!(pods.len() == WORKERS, "{} run", pods.len());
            Ok(())
        })
        .await?;
        if round > 0 {
            times.push(start.elapsed());
            progress.say(format_args!("recreation: pod {round} of {ROUNDS}"));
        }
    }
    remove(&group).await?;
    Ok(times)
}

/// Names of the pods whose containers run and that are not being deleted.
async fn running(group: &Group) -> Result<Vec<String>> {
    let pods = group.pods().await?;
    let runs = pods.into_iter().filter(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    });
    Ok(runs.filter_map(|pod| pod.metadata.name).collect())
}

async fn delete(namespace: &Namespace, pod: &str) -> Result<Instant> {
    let start = Instant::now();
    namespace.kubectl(&["delete", "pod", pod, "--wait=false"]).await?;
    Ok(start)
}

/// What replaces lost pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replacer {
    ControlPlane,
    JobController,
}

/// Has lost pods replaced by this.
async fn replaced_by(namespace: &Namespace, replacer: Replacer) -> Result<()> {
    let on = replacer == Replacer::ControlPlane;
    let deployments: Api<Deployment> = Api::namespaced(namespace.access.client.clone(), PRODUCT);
    let deployment = serde_json::to_value(deployments.get(DEPLOYMENT).await?)?;
    let mut container = deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let args = container["args"]
        .as_array_mut()
        .context("the control plane has no arguments")?;
    args.retain(|arg| !arg.as_str().is_some_and(|arg| arg.starts_with(FLAG)));
    args.push(json!(format!("{FLAG}{on}")));
    let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    deployments
        .patch(DEPLOYMENT, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let rolled_out = [
        "--namespace",
        PRODUCT,
        "rollout",
        "status",
        "deployment",
        DEPLOYMENT,
    ];
    namespace.access.kubectl(&rolled_out, "").await?;
    Ok(())
}

pub(crate) async fn remove(group: &Group) -> Result<()> {
    group
        .namespace
        .kubectl(&["delete", "jobset", &group.name, "--cascade=foreground"])
        .await?;
    Ok(())
}
