//! Real Ray, from its wheels, in pods of the node: RayJobs that compute, fail, time out, and lose
//! parts of their cluster.

mod attempts;
mod computes;
mod cron;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::{Namespace, Process, eventually, process};
use lockstep_integration::image;
use serde_json::{Value, json};

use crate::support::{Case, Scene};

pub(crate) fn cases() -> Vec<Case> {
    let cases = [computes::cases(), attempts::cases(), cron::cases()];
    let mut cases: Vec<Case> = cases.into_iter().flatten().collect();
    for case in &mut cases {
        case.limit = Duration::from_secs(600);
    }
    cases
}

/// Ray takes seconds of CPU time for each of its nodes before it runs anything.
const PATIENCE: Duration = Duration::from_secs(180);
const IMAGE: &str = "localhost/ray:2";
/// On a busy node Ray's head gives up and restarts before it is up, and a job that was created for
/// it loses an attempt.
const SPARE: i64 = 3;
/// The sizes of `emptyDir`s and Ray's defaults are larger than a test needs.
const STORE: &str = "100000000";

fn is_head(pod: &str) -> bool {
    pod.contains("-head-")
}

/// Ray's essential process in each of these pods: the control store in the head, and the raylet in
/// the others.
fn programs(pods: &[(String, String, String)]) -> Result<Vec<Process>> {
    let programs = pods.iter().map(|(name, _, container)| {
        let program = if is_head(name) { "gcs_server" } else { "raylet" };
        program_of(container, program).with_context(|| format!("no {program} in {name}"))
    });
    programs.collect()
}

fn program_of(container: &str, program: &str) -> Option<Process> {
    if container.is_empty() {
        return None;
    }
    let mut processes = process::in_container(container).into_iter();
    processes.find(|process| process.args().first().is_some_and(|path| path.ends_with(program)))
}

/// Enables Ray in the product, and puts Ray's image on the node.
async fn with_ray(scene: &Scene) -> Result<()> {
    scene.product.load(&image::ray().await?).await?;
    enable(scene).await
}

/// Enables Ray in the product, and waits until its kinds are served.
pub(crate) async fn enable(scene: &Scene) -> Result<()> {
    scene.product.reinstall(&["ray.enabled=true"]).await?;
    eventually("Ray's kinds are served", PATIENCE, async || {
        scene
            .namespace
            .kubectl(&["get", "rayjobs,raycronjobs"])
            .await
            .map(drop)
    })
    .await
}

/// A RayJob `rj` on a head and this many workers, with attempts to spare.
fn rayjob(entrypoint: &str, workers: u32) -> Value {
    let template = json!({"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "ray",
            "image": IMAGE,
            "resources": {"requests": {"cpu": "10m"}},
            "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        }],
        "volumes": [{"name": "code", "configMap": {"name": "code", "optional": true}}],
    }});
    let params = json!({"num-cpus": "1", "object-store-memory": STORE});
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "rj"},
        "spec": {
            "entrypoint": entrypoint,
            "backoffLimit": SPARE,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": params, "template": template},
                "workerGroupSpecs": if workers == 0 { json!([]) } else {
                    json!([{"groupName": "small", "replicas": workers, "rayStartParams": params, "template": template}])
                },
            },
        },
    })
}

async fn create(namespace: &Namespace, manifest: &Value) -> Result<()> {
    namespace
        .kubectl_with(&["create", "--filename", "-"], &manifest.to_string())
        .await
        .map(drop)
}

async fn status(namespace: &Namespace) -> Result<Value> {
    let job: Value = serde_json::from_str(
        &namespace
            .kubectl(&["get", "rayjob", "rj", "--output", "json"])
            .await?,
    )?;
    Ok(job["status"].clone())
}

fn retries(status: &Value) -> i64 {
    status["numRetries"].as_i64().unwrap_or(0)
}

/// Waits until the status has this value.
async fn has(namespace: &Namespace, pointer: &str, value: &Value) -> Result<Value> {
    eventually(&format!("{pointer} is {value}"), PATIENCE, async || {
        let status = status(namespace).await?;
        ensure!(status.pointer(pointer) == Some(value), "{status}");
        Ok(status)
    })
    .await
}

/// The ids of all jobs submitted to the Ray that runs now.
async fn submissions(namespace: &Namespace) -> Result<Vec<Value>> {
    const ASK: &str = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8265/api/jobs/').read().decode())";
    let pods = pods(namespace).await?;
    let head = pods.iter().find(|(name, ..)| is_head(name)).context("no head")?;
    let gcs = program_of(&head.2, "gcs_server").context("no GCS")?;
    let asked = tokio::process::Command::new("nsenter")
        .args([
            "--target",
            &gcs.pid.to_string(),
            "--net",
            "--",
            "python3",
            "-c",
            ASK,
        ])
        .output()
        .await?;
    ensure!(
        asked.status.success(),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    let jobs: Vec<Value> = serde_json::from_slice(&asked.stdout)?;
    let submitted = jobs.into_iter().filter(|job| job["type"] == "SUBMISSION");
    Ok(submitted.map(|job| job["submission_id"].clone()).collect())
}

/// Waits for the end of the RayJob, which must be this one.
async fn ended(namespace: &Namespace, how: &str) -> Result<Value> {
    let ended = eventually("the RayJob ends", PATIENCE, async || {
        let status = status(namespace).await?;
        let phase = status["jobDeploymentStatus"].as_str().unwrap_or_default();
        ensure!(
            ["Complete", "Failed", "ValidationFailed"].contains(&phase),
            "{status}"
        );
        Ok(status)
    })
    .await?;
    ensure!(ended["jobDeploymentStatus"] == how, "{ended}");
    Ok(ended)
}

/// The output of the driver, once the submitter has shown all of it.
async fn logs(namespace: &Namespace) -> Result<String> {
    let patience = format!("--timeout={}s", PATIENCE.as_secs());
    namespace
        .kubectl(&["wait", "--for=condition=Complete", &patience, "job/rj"])
        .await?;
    namespace.kubectl(&["logs", "job/rj"]).await
}

/// The name, UID and container of each of Ray's pods.
async fn pods(namespace: &Namespace) -> Result<Vec<(String, String, String)>> {
    let args = [
        "get",
        "pods",
        "--selector",
        "ray.io/is-ray-node=yes",
        "--output",
        "json",
    ];
    let pods: Value = serde_json::from_str(&namespace.kubectl(&args).await?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut pods: Vec<_> = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pod| {
            let id = text(&pod["status"]["containerStatuses"][0]["containerID"]);
            let id = id.rsplit('/').next().unwrap_or_default().to_owned();
            (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]), id)
        })
        .collect();
    pods.sort();
    Ok(pods)
}
