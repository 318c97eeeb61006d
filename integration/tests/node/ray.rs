//! Real Ray, from its wheels, in pods of the node: RayJobs that compute, fail, run out of time, and lose what they run on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::{Namespace, Process, eventually, process};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case!(a_job_computes_on_head_and_workers_of_which_one_dies alone),
        case!(a_failed_job_is_tried_again_in_place alone),
        case!(a_deadline_stops_the_job alone),
        case!(a_job_outlives_its_submitter alone),
        case!(a_job_is_tried_again_when_its_head_dies alone),
        case!(a_schedule_fires_twice alone),
    ];
    for case in &mut cases {
        case.limit = Duration::from_secs(400);
    }
    cases
}

/// Ray takes seconds of CPU time for each of its nodes before it runs anything.
const PATIENCE: Duration = Duration::from_secs(180);
const IMAGE: &str = "localhost/ray:2";
/// Of `emptyDir`s and of what Ray takes by itself there is more than a test needs.
const STORE: &str = "100000000";

/// Where the head's logs are on the node, and in the head.
const LOGS: (&str, &str) = ("/var/lib/lockstep-tests/ray-logs", "/logs");
/// What the driver does in the first test: as a module of the working directory that a runtime environment names.
const MAIN: &str = r#"
import os, time, ray
ray.init()
def alive():
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def square(x):
    time.sleep(1)
    return x * x, ray.util.get_node_ip_address()
def squares():
    while len(alive()) != 3:
        time.sleep(0.5)
    done = ray.get([square.remote(x) for x in range(6)])
    return [square for square, _ in done], "on", len({node for _, node in done}), "nodes,"
print("squares", *squares(), os.environ["GREETING"], flush=True)
before = alive()
while not os.path.exists("/logs/go") or alive() == before:
    time.sleep(0.5)
print("again", *squares(), len(before & alive()), "of them as before", flush=True)
"#;

async fn a_job_computes_on_head_and_workers_of_which_one_dies(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("app"))?;
    std::fs::write(folder.path().join("app/main.py"), MAIN)?;
    let archive = folder.path().join("app.zip");
    let zipped = tokio::process::Command::new("python3")
        .args(["-m", "zipfile", "-c"])
        .arg(&archive)
        .arg("app/")
        .current_dir(folder.path())
        .status()
        .await?;
    ensure!(zipped.success(), "zipfile: {zipped}");
    let from = format!("--from-file={}", archive.display());
    let namespace = &scene.namespace;
    namespace.kubectl(&["create", "configmap", "code", &from]).await?;

    let created = Instant::now();
    let mut manifest = rayjob("python main.py", 2);
    let spec = &mut manifest["spec"];
    spec["runtimeEnvYAML"] = json!("working_dir: file:///code/app.zip\nenv_vars:\n  GREETING: hello\n");
    spec["shutdownAfterJobFinishes"] = json!(true);
    let host = format!("{}/{}", LOGS.0, namespace.name);
    keep_logs(&mut spec["rayClusterSpec"]["headGroupSpec"], &host);
    create(namespace, &manifest).await?;
    let first = "squares [0, 1, 4, 9, 16, 25] on 3 nodes, hello";
    eventually("it computes", PATIENCE, async || {
        let logs = namespace.kubectl(&["logs", "job/rj"]).await?;
        ensure!(logs.contains(first), "{logs}");
        Ok(())
    })
    .await?;
    println!(
        "     a RayJob with two workers, from its creation to its first result: {:.1?}",
        created.elapsed()
    );

    let killed = Instant::now();
    a_worker_dies(namespace).await?;
    println!(
        "     a worker of Ray, from its death to another one in its place: {:.1?}",
        killed.elapsed()
    );
    let kept = scene.product.node_path(1, &host).await?;
    std::fs::write(kept.join("go"), "")?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"] == 0 && status["failed"] == 0,
        "{status}"
    );
    let again = "again [0, 1, 4, 9, 16, 25] on 3 nodes, 2 of them as before";
    let shown = logs(namespace).await?;
    ensure!(shown.contains(first) && shown.contains(again), "{shown}");

    eventually("the cluster is gone", PATIENCE, async || {
        let left = pods(namespace).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    let session = std::fs::read_dir(&kept)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("session_2"))
        .context("no session")?;
    let id = status["jobId"].as_str().unwrap_or_default();
    let of_driver = std::fs::read_to_string(session.path().join(format!("logs/job-driver-{id}.log")))?;
    ensure!(of_driver.contains(again), "{of_driver}");
    ensure!(
        session.path().join("logs/gcs_server.out").is_file(),
        "no log of Ray's own"
    );
    Ok(())
}

/// Has the head keep its logs on its node, as docs/ray.md says.
fn keep_logs(head: &mut Value, host: &str) {
    head["rayStartParams"]["temp-dir"] = json!(LOGS.1);
    let pod = &mut head["template"]["spec"];
    let volume = json!({"name": "logs", "hostPath": {"path": host, "type": "DirectoryOrCreate"}});
    let mount = json!({"name": "logs", "mountPath": LOGS.1});
    for (list, entry) in [("/volumes", volume), ("/containers/0/volumeMounts", mount)] {
        if let Some(Value::Array(list)) = pod.pointer_mut(list) {
            list.push(entry);
        }
    }
}

/// Kills Ray in one worker, and sees that it comes again there, and that nothing else is touched.
async fn a_worker_dies(namespace: &Namespace) -> Result<()> {
    let before = pods(namespace).await?;
    let processes = |pods: &[(String, String, String)]| -> Result<Vec<Process>> {
        let programs = pods.iter().map(|(name, _, container)| {
            let program = if name.contains("-head-") {
                "gcs_server"
            } else {
                "raylet"
            };
            program_of(container, program).with_context(|| format!("no {program} in {name}"))
        });
        programs.collect()
    };
    let old = processes(&before)?;
    let victim = before
        .iter()
        .position(|(name, ..)| name.contains("-small-"))
        .context("no worker")?;
    old[victim].signal(Signal::SIGKILL)?;
    eventually("Ray runs there again", PATIENCE, async || {
        let after = pods(namespace).await?;
        ensure!(after == before, "{before:?} became {after:?}");
        let new = processes(&after)?;
        ensure!(new[victim] != old[victim], "it is the old one");
        let untouched = (0..old.len()).filter(|index| *index != victim);
        for index in untouched {
            ensure!(
                new[index] == old[index],
                "{:?} became {:?}",
                old[index],
                new[index]
            );
        }
        Ok(())
    })
    .await
}

fn program_of(container: &str, program: &str) -> Option<Process> {
    let mut processes = process::in_container(container).into_iter();
    processes.find(|process| process.args().first().is_some_and(|path| path.ends_with(program)))
}

async fn a_failed_job_is_tried_again_in_place(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob(
        r#"sh -c 'echo attempt $RAYJOB_ATTEMPT; test "$RAYJOB_ATTEMPT" = 1'"#,
        1,
    );
    manifest["spec"]["backoffLimit"] = json!(1);
    create(namespace, &manifest).await?;
    has(namespace, "/jobDeploymentStatus", &json!("Running")).await?;
    let before = eventually("head and worker run", PATIENCE, async || {
        let pods = pods(namespace).await?;
        let run = pods.iter().all(|(_, _, container)| !container.is_empty());
        ensure!(pods.len() == 2 && run, "{pods:?}");
        Ok(pods)
    })
    .await?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"] == 1,
        "{status}"
    );
    let after = pods(namespace).await?;
    ensure!(
        before.len() == 2 && after == before,
        "{before:?} became {after:?}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains("attempt 1"), "{logs}");
    Ok(())
}

async fn a_deadline_stops_the_job(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob("sleep 4242", 0);
    manifest["spec"]["backoffLimit"] = json!(3);
    manifest["spec"]["activeDeadlineSeconds"] = json!(60);
    create(namespace, &manifest).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let status = ended(namespace, "Failed").await?;
    ensure!(
        status["reason"] == "DeadlineExceeded" && status["numRetries"].as_i64().unwrap_or(0) == 0,
        "{status}"
    );
    has(namespace, "/jobStatus", &json!("STOPPED")).await
}

async fn a_job_outlives_its_submitter(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    // The driver says when it began, and how often it did.
    let script = "echo began >> /tmp/began; sleep 15; echo began $(wc -l < /tmp/began) times";
    create(namespace, &rayjob(&format!("sh -c '{script}'"), 0)).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let of_submitter = ["--selector", "batch.kubernetes.io/job-name=rj"];
    namespace
        .kubectl(
            &[
                &["delete", "pod", "--grace-period=0", "--force"][..],
                &of_submitter,
            ]
            .concat(),
        )
        .await?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"].as_i64().unwrap_or(0) == 0,
        "{status}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains("began 1 times"), "{logs}");
    Ok(())
}

async fn a_job_is_tried_again_when_its_head_dies(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob(r#"sh -c 'test "$RAYJOB_ATTEMPT" = 1 || sleep 4242'"#, 1);
    manifest["spec"]["backoffLimit"] = json!(1);
    create(namespace, &manifest).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let before = pods(namespace).await?;
    let (_, _, head) = before
        .iter()
        .find(|(name, ..)| name.contains("-head-"))
        .context("no head")?;
    let gcs = program_of(head, "gcs_server").context("no GCS in the head")?;
    gcs.signal(Signal::SIGKILL)?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"] == 1,
        "{status}"
    );
    let after = pods(namespace).await?;
    ensure!(after == before, "{before:?} became {after:?}");
    Ok(())
}

async fn a_schedule_fires_twice(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut job = rayjob("sh -c 'echo it is time'", 0)["spec"].take();
    job["shutdownAfterJobFinishes"] = json!(true);
    let manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCronJob",
        "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": job},
    });
    create(namespace, &manifest).await?;
    eventually("two RayJobs have run", PATIENCE * 2, async || {
        let args = [
            "get",
            "rayjobs",
            "--selector",
            "ray.io/cronjob-name=tick",
            "--output",
            "json",
        ];
        let jobs: Value = serde_json::from_str(&namespace.kubectl(&args).await?)?;
        let done: Vec<_> = jobs["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|job| job["status"]["jobStatus"] == "SUCCEEDED")
            .map(|job| job["metadata"]["name"].clone())
            .collect();
        ensure!(done.len() >= 2, "{done:?} of {}", jobs["items"]);
        Ok(())
    })
    .await?;
    namespace
        .kubectl(&["delete", "raycronjob", "tick", "--cascade=foreground"])
        .await
        .map(drop)
}

/// Has the product look after RayJobs, and Ray's image on the node.
async fn with_ray(scene: &Scene) -> Result<()> {
    scene.product.load(&image::ray().await?).await?;
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

/// A RayJob `rj` on a head and so many workers.
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

/// Waits until the status holds this.
async fn has(namespace: &Namespace, pointer: &str, value: &Value) -> Result<()> {
    eventually(&format!("{pointer} is {value}"), PATIENCE, async || {
        let status = status(namespace).await?;
        ensure!(status.pointer(pointer) == Some(value), "{status}");
        Ok(())
    })
    .await
}

/// Waits for the end, which must be this one.
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

/// What the driver has printed, once the submitter has shown all of it.
async fn logs(namespace: &Namespace) -> Result<String> {
    let patience = format!("--timeout={}s", PATIENCE.as_secs());
    namespace
        .kubectl(&["wait", "--for=condition=Complete", &patience, "job/rj"])
        .await?;
    namespace.kubectl(&["logs", "job/rj"]).await
}

/// Name, UID and container of each of Ray's pods.
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
