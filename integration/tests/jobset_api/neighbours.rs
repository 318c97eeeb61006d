//! What other controllers do with JobSets, request by request: Kueue's admissions, and the health
//! that Argo CD reads.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::ListParams;
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(kueue_admits_takes_back_and_admits_to_another_flavor),
        case!(argo_cd_reads_the_health_of_what_was_written),
    ]
}

/// A replicatedJob as Kueue writes it for a flavor: with the flavor's node selector and toleration,
/// and Kueue's label and annotation.
fn admitted(name: &str, zone: &str) -> Value {
    let mut job = replicated_job(name, 1);
    let pod = &mut job["template"]["spec"]["template"];
    pod["metadata"] = json!({
        "labels": {"kueue.x-k8s.io/podset": name},
        "annotations": {"kueue.x-k8s.io/workload": "jobset-js-1a2b3"},
    });
    pod["spec"]["nodeSelector"] = json!({"zone": zone});
    pod["spec"]["tolerations"] =
        json!([{"key": "spot", "operator": "Equal", "value": zone, "effect": "NoSchedule"}]);
    job
}

/// True if the template has the fields of this flavor.
fn is_of(template: &PodTemplateSpec, zone: &str) -> bool {
    let meta = template.metadata.clone().unwrap_or_default();
    let label = meta.labels.unwrap_or_default().remove("kueue.x-k8s.io/podset");
    let note = meta
        .annotations
        .unwrap_or_default()
        .remove("kueue.x-k8s.io/workload");
    let spec = template.spec.clone().unwrap_or_default();
    let selected = spec.node_selector.unwrap_or_default().remove("zone");
    let tolerated = spec.tolerations.unwrap_or_default();
    let tolerated = tolerated.iter().any(|toleration| {
        toleration.key.as_deref() == Some("spot") && toleration.value.as_deref() == Some(zone)
    });
    label.as_deref() == Some("a") && note.is_some() && selected.as_deref() == Some(zone) && tolerated
}

async fn pods_are_of(scene: &Scene, zone: &str) -> Result<()> {
    scene.until_condition("Suspended", "False", "ResumeJobs").await?;
    eventually(&format!("a Job and a pod of {zone}"), PATIENCE, async || {
        let job = scene.api::<Job>().get("js-a-0").await?;
        let spec = job.spec.context("no spec")?;
        ensure!(
            spec.suspend != Some(true) && is_of(&spec.template, zone),
            "{spec:?}"
        );
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        let alive: Vec<Pod> = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect();
        ensure!(alive.len() == 1, "{} pods", alive.len());
        let template = PodTemplateSpec {
            metadata: Some(alive[0].metadata.clone()),
            spec: alive[0].spec.clone(),
        };
        ensure!(is_of(&template, zone), "{template:?}");
        Ok(())
    })
    .await
}

async fn kueue_admits_takes_back_and_admits_to_another_flavor(scene: Scene) -> Result<()> {
    let plain = || replicated_job("a", 1);
    let mut manifest = jobset(json!({"suspend": true, "replicatedJobs": [plain()]}));
    manifest["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "team"});
    scene.create(manifest).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    ensure!(
        scene
            .api::<Pod>()
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
    );

    let admit = |zone: &str| json!({"spec": {"suspend": false, "replicatedJobs": [admitted("a", zone)]}});
    scene.patch(admit("east")).await?;
    pods_are_of(&scene, "east").await?;
    scene.pods_become("js-a-0", "Running").await?;
    let status = scene
        .until_status("it is ready, as waitForPodsReady looks for it", |status| {
            status.replicated_job("a").is_some_and(|counts| counts.ready == 1)
        })
        .await?;
    ensure!(status.restarts == 0);

    // Preemption is one patch with the former templates.
    scene
        .patch(json!({"spec": {"suspend": true, "replicatedJobs": [plain()]}}))
        .await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    scene.until_no_pods().await?;

    scene.patch(admit("west")).await?;
    pods_are_of(&scene, "west").await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    let status = scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    ensure!(
        status.restarts == 0 && status.terminal_state.is_some(),
        "{status:?}"
    );
    // The queue's label is the user's, and stays.
    let js = scene.api::<JobSet>().get("js").await?;
    ensure!(
        js.metadata
            .labels
            .is_some_and(|labels| labels.contains_key("kueue.x-k8s.io/queue-name"))
    );
    Ok(())
}

/// What examples/argocd/health.lua says of the stored JobSet: a state and a message.
async fn health(scene: &Scene) -> Result<String> {
    let js = scene
        .namespace
        .kubectl(&["get", "jobset", "js", "--output", "json"])
        .await?;
    let tools = Tools::locate(["glua"], &Progress::quiet()).await?;
    let said = "import json, sys, health_test as h; js = json.load(sys.stdin); print(*h.health(js['spec'], js.get('status')), sep=': ')";
    let mut python = Command::new("python3")
        .args(["-B", "-c", said])
        .env("LUA", tools.path("glua")?)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/argocd"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = python.stdin.take().context("no input")?;
    input.write_all(js.as_bytes()).await?;
    drop(input);
    let output = python.wait_with_output().await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

async fn until_health(scene: &Scene, expected: &str) -> Result<()> {
    eventually(expected, PATIENCE, async || {
        let said = health(scene).await?;
        ensure!(said.starts_with(expected), "{said}");
        Ok(())
    })
    .await
}

async fn argo_cd_reads_the_health_of_what_was_written(scene: Scene) -> Result<()> {
    let spec = json!({"suspend": true, "replicatedJobs": [replicated_job("a", 2)]});
    scene.create(jobset(spec)).await?;
    until_health(&scene, "Suspended: ").await?;
    scene.patch(json!({"spec": {"suspend": false}})).await?;
    until_health(&scene, "Progressing: ").await?;
    scene.pods_become("js-a-0", "Running").await?;
    scene.pods_become("js-a-1", "Running").await?;
    until_health(&scene, "Healthy: all workers run").await?;
    scene.pods_become("js-a-0", "Failed").await?;
    until_health(&scene, "Degraded: jobset failed").await?;
    let wait = [
        "wait",
        "--for=jsonpath={.status.terminalState}",
        "jobset/js",
        "--timeout=60s",
    ];
    let waited = scene.namespace.kubectl(&wait).await?;
    ensure!(waited.contains("condition met"), "{waited}");
    Ok(())
}
