//! A node whose pods have such a large environment that containerd cannot describe them to an NRI
//! plugin: the daemon is not a plugin until they are gone. It says so, and does what it can without
//! NRI.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use lockstep_integration::harness::group::{RESTART, START, container_id};
use lockstep_integration::harness::manifest::{CONTAINER, IDLE};
use lockstep_integration::harness::{Group, Manifest, Process, eventually, process};
use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};

use crate::demo::kubectl_lockstep;
use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(nri_is_lost_to_them_and_groups_restart_all_the_same alone)]
}

/// NRI sends at least four containers at once, and at most 4 MiB. Three of these containers exceed
/// that. With this many of them beside up to 16 others, some group of four holds three, in any
/// order.
const PODS: usize = 20;
/// The variables of each container, in two ConfigMaps, and the bytes of each variable: the kernel
/// allows at most 128 KiB for one, and 2 MiB for all.
const VARIABLES: usize = 18;
const BYTES: usize = 95_000;
/// The message of the plugin.
const SAID: &str = "no agent gets into containers on node-1: containerd closes each connection before it has listed the node's pods";
/// How long a restart may take until it becomes a recreation.
const TIMEOUT: &str = "20s";

async fn nri_is_lost_to_them_and_groups_restart_all_the_same(scene: Scene) -> Result<()> {
    let supervised = scene.apply(&Manifest::new(2, IDLE).named("before")).await?;
    let workers = supervised.running(2).await?;
    supervised.status_has("/inPlaceRestart/phase", "InSync").await?;
    large_pods(&scene).await?;
    // A daemon that was a plugin before these pods came stays one. The next daemon cannot become
    // one.
    scene.product.renew(Part::NodeDaemon(1)).await?;
    eventually("the plugin says so", RESTART, async || {
        let said = kubectl_lockstep(&scene, &["check"]).await?;
        ensure!(said.contains(SAID), "{said}");
        let nodes = nodes(&scene).await?;
        let node = &nodes[0];
        ensure!(
            node["nriHealth"]["state"] == "away" && node["level"] == "container",
            "{nodes}"
        );
        // The daemon is ready nevertheless, and a rollout does not stop at it.
        ensure!(node["connected"] == true && node["ready"] == true, "{nodes}");
        Ok(())
    })
    .await?;

    // Running workers are not disturbed, and workers with an agent restart by it.
    ensure!(supervised.running(2).await? == workers, "they were disturbed");
    workers[0].signal(Signal::SIGKILL)?;
    let workers = supervised.restarted_in_place(&workers, 1).await?;

    let manifest = Manifest::new(2, IDLE)
        .named("meanwhile")
        .annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", TIMEOUT);
    let bare = scene.apply(&manifest).await?;
    let first = without_agent(&bare, &[]).await?;
    first[1].1.signal(Signal::SIGKILL)?;
    let second = without_agent(&bare, &first).await?;
    bare.status_has("/restarts", 1).await?;
    bare.status_has("/inPlaceRestart/restarts", 1).await?;

    scene
        .namespace
        .kubectl(&["delete", "deployment", "large", "--cascade=foreground"])
        .await?;
    eventually("the daemon is a plugin again", START, async || {
        let nodes = nodes(&scene).await?;
        ensure!(
            nodes[0]["nriHealth"]["state"] == "well" && nodes[0]["level"] == "process",
            "{nodes}"
        );
        let said = kubectl_lockstep(&scene, &["check"]).await?;
        ensure!(!said.contains(SAID), "{said}");
        Ok(())
    })
    .await?;
    // Workers without an agent get one with their next containers.
    second[0].1.signal(Signal::SIGKILL)?;
    let with_agents = eventually("they have agents", RESTART, async || {
        let (workers, others) = bare.workers().await?;
        ensure!(workers.len() == 2, "{others:?}");
        Ok(workers)
    })
    .await?;
    let after: Vec<_> = with_agents
        .iter()
        .map(|worker| worker.place.uid.clone())
        .collect();
    ensure!(
        after.iter().eq(second.iter().map(|(uid, _)| uid)),
        "other pods: {after:?}, {second:?}"
    );
    let new = scene.apply(&Manifest::new(2, IDLE).named("after")).await?;
    let before = new.running(2).await?;
    before[1].signal(Signal::SIGKILL)?;
    new.restarted_in_place(&before, 1).await?;
    ensure!(supervised.running(2).await? == workers, "they were disturbed");
    Ok(())
}

/// What `kubectl lockstep nodes` shows.
async fn nodes(scene: &Scene) -> Result<Value> {
    let nodes = kubectl_lockstep(scene, &["nodes", "--output", "json"]).await?;
    Ok(serde_json::from_str(&nodes)?)
}

/// Creates pods with such environments that are never restarted, and waits until they run.
async fn large_pods(scene: &Scene) -> Result<()> {
    let names = ["large-a", "large-b"];
    for (number, name) in names.iter().enumerate() {
        let variables = (0..VARIABLES / names.len())
            .map(|variable| (format!("V{number}_{variable}"), json!("x".repeat(BYTES))));
        let data: Map<String, Value> = variables.collect();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        scene
            .namespace
            .kubectl_with(&["create", "--filename", "-"], &map.to_string())
            .await?;
    }
    let labels = json!({"app": "large"});
    let environment = names.map(|name| json!({"configMapRef": {"name": name}}));
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "large"},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "large",
                        "image": "localhost/busybox:1",
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "1000000"],
                        "envFrom": environment,
                    }],
                },
            },
        },
    });
    scene
        .namespace
        .kubectl_with(&["create", "--filename", "-"], &deployment.to_string())
        .await?;
    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    eventually("the large pods run", START, async || {
        let large = pods.list(&ListParams::default().labels("app=large")).await?;
        let runs = |pod: &&Pod| {
            pod.status
                .as_ref()
                .is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        let running = large.items.iter().filter(runs).count();
        ensure!(running == PODS, "{running} run");
        Ok(())
    })
    .await
}

/// Waits until the two workers of a group run without an agent, in other pods than `before`.
/// Returns the UIDs of their pods, and PID 1 of their containers.
async fn without_agent(group: &Group, before: &[(String, Process)]) -> Result<Vec<(String, Process)>> {
    eventually("two workers run without an agent", START, async || {
        let mut workers = Vec::new();
        for pod in group.pods().await? {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            ensure!(
                before.iter().all(|(old, _)| *old != uid),
                "the pod is a former one"
            );
            let init = process::init_of(&container_id(&pod, CONTAINER)?).context("no PID 1")?;
            ensure!(init.args() == ["sleep", "1000000"], "{:?}", init.args());
            workers.push((uid, init));
        }
        ensure!(workers.len() == 2, "{workers:?}");
        Ok(workers)
    })
    .await
}
