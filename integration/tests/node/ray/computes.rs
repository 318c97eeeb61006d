//! A job that computes on a head and two workers, one of which dies, and the logs that it leaves.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::{Namespace, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{IMAGE, PATIENCE, create, ended, logs, pods, programs, rayjob, status, with_ray};
use crate::support::{Case, Scene, case};

pub(super) fn cases() -> Vec<Case> {
    vec![case!(a_job_computes_on_head_and_workers_of_which_one_dies alone)]
}

/// The paths of the log volume on the node and in the head.
const LOGS: (&str, &str) = ("/var/lib/lockstep-tests/ray-logs", "/logs");
/// Name of the claim of that volume.
const CLAIM: &str = "ray-logs";
/// The driver of the first test: a module of the working directory that a runtime environment
/// names.
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
    keep_logs(&mut spec["rayClusterSpec"]["headGroupSpec"]);
    claim(namespace, &host).await?;
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

    let before = status(namespace).await?;
    let killed = Instant::now();
    a_worker_dies(namespace).await?;
    println!(
        "     a worker of Ray, from its death to another one in its place: {:.1?}",
        killed.elapsed()
    );
    let on_node = scene.product.node_path(1, &host).await?;
    std::fs::write(on_node.join("go"), "")?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED"
            && status["jobId"] == before["jobId"]
            && status["failed"] == before["failed"],
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
    let id = status["jobId"].as_str().unwrap_or_default();
    let kept = read_logs(namespace, id).await?;
    ensure!(kept.contains("gcs_server.out") && kept.contains(again), "{kept}");
    Ok(())
}

/// A volume on the node, and its claim.
async fn claim(namespace: &Namespace, host: &str) -> Result<()> {
    let shared = json!({"storageClassName": "", "accessModes": ["ReadWriteOnce"]});
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": format!("{CLAIM}-{}", namespace.name)},
        "spec": shared,
    });
    volume["spec"]["capacity"] = json!({"storage": "1Gi"});
    volume["spec"]["hostPath"] = json!({"path": host, "type": "DirectoryOrCreate"});
    volume["spec"]["claimRef"] = json!({"namespace": namespace.name, "name": CLAIM});
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": shared,
    });
    claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
    claim["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
    create(namespace, &volume).await?;
    create(namespace, &claim).await
}

/// Makes the head keep its logs on the claim's volume, as docs/ray.md says.
fn keep_logs(head: &mut Value) {
    head["rayStartParams"]["temp-dir"] = json!(LOGS.1);
    let pod = &mut head["template"]["spec"];
    let (volume, mount) = on_claim();
    for (list, entry) in [("/volumes", volume), ("/containers/0/volumeMounts", mount)] {
        if let Some(Value::Array(list)) = pod.pointer_mut(list) {
            list.push(entry);
        }
    }
}

/// The volume of a pod that uses the claim, and where it is mounted.
fn on_claim() -> (Value, Value) {
    let volume = json!({"name": "logs", "persistentVolumeClaim": {"claimName": CLAIM}});
    (volume, json!({"name": "logs", "mountPath": LOGS.1}))
}

/// The logs of Ray's control store and of the driver, as a separate pod reads them from the claim's
/// volume.
async fn read_logs(namespace: &Namespace, id: &str) -> Result<String> {
    let session = format!("{}/session_2*/logs", LOGS.1);
    let command = format!("ls {session}/gcs_server.out && cat {session}/job-driver-{id}.log");
    let (volume, mount) = on_claim();
    let reader = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "reader"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "reader", "image": IMAGE, "command": ["sh", "-c", command], "volumeMounts": [mount],
            }],
            "volumes": [volume],
        },
    });
    create(namespace, &reader).await?;
    eventually("the logs are read", PATIENCE, async || {
        let phase = "jsonpath={.status.phase}";
        let phase = namespace
            .kubectl(&["get", "pod", "reader", "--output", phase])
            .await?;
        ensure!(["Succeeded", "Failed"].contains(&phase.as_str()), "{phase}");
        Ok(())
    })
    .await?;
    namespace.kubectl(&["logs", "reader"]).await
}

/// Kills Ray in one worker, and checks that it restarts there and that nothing else is touched.
async fn a_worker_dies(namespace: &Namespace) -> Result<()> {
    let before = pods(namespace).await?;
    let old = programs(&before)?;
    let victim = before
        .iter()
        .position(|(name, ..)| name.contains("-small-"))
        .context("no worker")?;
    old[victim].signal(Signal::SIGKILL)?;
    eventually("Ray runs there again", PATIENCE, async || {
        let after = pods(namespace).await?;
        ensure!(after == before, "{before:?} became {after:?}");
        let new = programs(&after)?;
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
