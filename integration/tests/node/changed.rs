//! Pods that differ from their template, and templates with rules of the user: the workers restart
//! together nevertheless.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{RESTART, START, container_id, container_status};
use lockstep_integration::harness::manifest::{CONTAINER, IDLE, IMAGE};
use lockstep_integration::harness::{Group, Manifest, Process, eventually, process};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(pods_that_a_policy_lets_share_their_processes_are_made_anew),
        case!(a_sidecar_with_a_restart_rule_is_not_upstreams_agent),
    ]
}

/// A policy that changes every pod of the namespace, and its binding. Both are named after the
/// namespace, since they are cluster-scoped.
fn policy(version: &str, namespace: &str) -> Value {
    let api = format!("admissionregistration.k8s.io/{version}");
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let change = "Object{spec: Object.spec{shareProcessNamespace: true}}";
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": namespace},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [rule]},
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}],
            },
        },
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": namespace},
            "spec": {
                "policyName": namespace,
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
            },
        },
    ]})
}

async fn pods_that_a_policy_lets_share_their_processes_are_made_anew(scene: Scene) -> Result<()> {
    let namespace = &scene.namespace.name;
    let access = scene.access();
    let mut served = None;
    for version in ["v1", "v1beta1"] {
        let policy = policy(version, namespace).to_string();
        if access
            .kubectl(&["apply", "--filename", "-"], &policy)
            .await
            .is_ok()
        {
            served = Some(policy);
            break;
        }
    }
    let policy = served.context("the API server serves no MutatingAdmissionPolicy")?;
    let result = made_anew(&scene).await;
    access
        .kubectl(&["delete", "--ignore-not-found", "--filename", "-"], &policy)
        .await?;
    result
}

async fn made_anew(scene: &Scene) -> Result<()> {
    eventually("the policy has an effect", START, async || {
        let probe = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": scene.namespace.name},
            "spec": {"containers": [{"name": "probe", "image": IMAGE}]},
        });
        let create = ["create", "--dry-run=server", "--output=json", "--filename", "-"];
        let pod = scene.access().kubectl(&create, &probe.to_string()).await?;
        let pod: Value = serde_json::from_str(&pod)?;
        ensure!(pod["spec"]["shareProcessNamespace"] == json!(true), "{pod}");
        Ok(())
    })
    .await?;
    let group = scene.apply(&Manifest::new(2, IDLE)).await?;
    let before = running(&group).await?;
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    let why = group.event("RestartNotSupervised").await?;
    let why = why.message.unwrap_or_default();
    ensure!(
        why.contains("recreates the Jobs") && why.contains("set shareProcessNamespace"),
        "{why}"
    );

    before[0].process.signal(Signal::SIGKILL)?;
    group.status_has("/restarts", 1).await?;
    let after = running(&group).await?;
    for after in &after {
        ensure!(
            before
                .iter()
                .all(|before| before.pod != after.pod && !before.process.is_alive()),
            "{before:?}, {after:?}"
        );
    }
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/level", "Recreate").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 1).await?;
    eventually("nothing blocks it", RESTART, async || {
        let conditions = group.status().await?["conditions"].to_string();
        ensure!(!conditions.contains("WorkerNotReported"), "{conditions}");
        Ok(())
    })
    .await
}

/// A worker without an agent, which is not PID 1 of its namespace.
#[derive(Debug)]
struct Shared {
    pod: String,
    process: Process,
}

/// Waits until both workers run in pods that are not being deleted.
async fn running(group: &Group) -> Result<Vec<Shared>> {
    eventually("both run", START, async || {
        let pods = group.pods().await?;
        ensure!(pods.len() == 2, "{} pods", pods.len());
        ensure!(
            pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()),
            "one is deleted"
        );
        let mut workers = Vec::new();
        for pod in &pods {
            let status = container_status(pod, CONTAINER).context("no status")?;
            let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
            ensure!(running, "{status:?}");
            let processes = process::in_container(&container_id(pod, CONTAINER)?);
            let mut workers_of = processes.into_iter().filter(|process| {
                let args = process.args();
                args.first().is_some_and(|program| program == "sleep")
            });
            workers.push(Shared {
                pod: pod.metadata.uid.clone().unwrap_or_default(),
                process: workers_of.next().context("its worker is not here")?,
            });
        }
        Ok(workers)
    })
    .await
}

async fn a_sidecar_with_a_restart_rule_is_not_upstreams_agent(scene: Scene) -> Result<()> {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}});
    let manifest = Manifest::new(2, IDLE).pod(json!({"initContainers": [{
        "name": "side",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "restartPolicy": "Always",
        "restartPolicyRules": [rule],
        "command": ["sh", "-c", "while :; do sleep 1; done"],
    }]}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    before[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await
}
