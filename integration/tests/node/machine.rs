//! Workers on nodes that are machines with a kernel of their own, which has cgroup v2 alone. They
//! take minutes: `make soak-cgroup2` sets LOCKSTEP_SOAK_CGROUP2 for them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::{Place, START};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::{Group, Manifest, eventually};
use serde_json::{Value, json};

use crate::demo::kubectl_lockstep;
use crate::memory::came_back;
use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    match std::env::var_os("LOCKSTEP_SOAK_CGROUP2") {
        Some(_) => vec![
            case!(a_container_that_is_out_of_memory_ends_whole alone),
            case!(only_the_worker_that_is_out_of_memory_ends alone),
            case!(a_machine_whose_power_fails_comes_back alone),
        ],
        None => Vec::new(),
    }
}

/// A worker that says its attempt, and ends with the command in `/tmp/end` as soon as there is one.
const SCRIPT: &str = r#"
    echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
    while [ ! -e /tmp/end ]; do sleep 0.2; done
    end=$(cat /tmp/end); rm /tmp/end; exec $end"#;
/// Uses 300 MB.
const EATS: &str = "dd if=/dev/zero of=/dev/null bs=300M count=1";
/// How long all workers may take to run again.
const AGAIN: Duration = Duration::from_secs(240);

fn on(nodes: &[u8]) -> Value {
    let nodes: Vec<_> = nodes.iter().map(|node| node_name(*node)).collect();
    let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": nodes});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let evenly = json!({
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "group"}},
        "nodeAffinityPolicy": "Honor",
    });
    json!({
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "topologySpreadConstraints": [evenly],
    })
}

/// Two workers on these nodes.
async fn group_on(scene: &Scene, nodes: &[u8]) -> Result<(Group, Vec<Place>)> {
    let limits = json!({"cpu": "500m", "memory": "64Mi"});
    let requests = json!({"cpu": "10m", "memory": "16Mi"});
    let manifest = Manifest::new(2, SCRIPT)
        .annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", "120s")
        .container(json!({"resources": {"limits": limits, "requests": requests}}))
        .pod(on(nodes));
    let group = scene.apply(&manifest).await?;
    let places = all_at(&group, 0, START).await?;
    Ok((group, places))
}

/// Waits until both workers run at a generation, and all is well.
async fn all_at(group: &Group, generation: u64, within: Duration) -> Result<Vec<Place>> {
    eventually(
        &format!("all run at generation {generation}"),
        within,
        async || {
            let mut places = Vec::new();
            for pod in group.pods().await? {
                let name = pod.metadata.name.clone().unwrap_or_default();
                let place = Place::of(&pod).with_context(|| name.clone())?;
                let log = group.logs(&name).await?;
                let last = log.lines().last().unwrap_or_default();
                ensure!(last == format!("attempt {generation}"), "{name} logs {log:?}");
                places.push(place);
            }
            ensure!(places.len() == 2, "{} pods", places.len());
            let status = &group.status().await?["inPlaceRestart"];
            let at = status["generation"].as_u64().unwrap_or_default();
            ensure!(status["phase"] == "InSync" && at == generation, "{status}");
            Ok(places)
        },
    )
    .await
}

/// Has the second worker end with this command.
async fn end(group: &Group, places: &[Place], command: &str) -> Result<()> {
    let script = format!("echo '{command}' > /tmp/part; mv /tmp/part /tmp/end");
    let exec = ["exec", &places[1].pod, "--container", CONTAINER, "--"];
    let exec = [&exec[..], &["sh", "-c", &script]].concat();
    group.namespace.kubectl(&exec).await?;
    Ok(())
}

/// True if the kernel kills all processes of a container that is out of memory.
async fn kills_whole(scene: &Scene, machine: u8, place: &Place) -> Result<bool> {
    let script = format!(
        "cat $(find /sys/fs/cgroup/kubepods -name '*{}*' -type d | head -1)/memory.oom.group",
        place.container
    );
    Ok(scene.product.run_on_machine(machine, &script).await?.trim() == "1")
}

async fn a_container_that_is_out_of_memory_ends_whole(scene: Scene) -> Result<()> {
    let machine = scene.product.add_machine(json!({})).await?;
    let (group, before) = group_on(&scene, &[machine]).await?;
    ensure!(kills_whole(&scene, machine, &before[1]).await?, "oom.group is 0");
    let checked = kubectl_lockstep(&scene, &["check"]).await?;
    let said = format!("is killed with its agent on {}\n", node_name(machine));
    ensure!(checked.contains(&said), "{checked}");
    // A failure of the usual kind leaves all containers alone.
    end(&group, &before, "false").await?;
    let after = all_at(&group, 1, AGAIN).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    let event = group.event("RestartedInPlace").await?;
    println!("     {}", event.message.unwrap_or_default());

    end(&group, &before, EATS).await?;
    let after = all_at(&group, 2, AGAIN).await?;
    ensure!(
        before[0] == after[0],
        "the healthy worker's place has changed: {after:#?}"
    );
    came_back(&group, &before[1], &after[1]).await?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;
    group.status_has("/restarts", 0).await?;
    scene.product.remove_machine(machine).await
}

async fn only_the_worker_that_is_out_of_memory_ends(scene: Scene) -> Result<()> {
    let machine = scene
        .product
        .add_machine(json!({"singleProcessOOMKill": true}))
        .await?;
    let (group, before) = group_on(&scene, &[machine]).await?;
    ensure!(
        !kills_whole(&scene, machine, &before[1]).await?,
        "oom.group is set"
    );
    end(&group, &before, EATS).await?;
    let after = all_at(&group, 1, AGAIN).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/cause/signal", 9).await?;
    let pod = before[1].pod.as_str();
    group.status_has("/inPlaceRestart/cause/pod", pod).await?;
    scene.product.remove_machine(machine).await
}

/// Has containerd forget that a container was started, as if a power failure came right after the
/// start.
async fn forget_start(scene: &Scene, machine: u8, place: &Place) -> Result<()> {
    let script = format!(
        "sed -i 's/\"Pid\":[0-9]*/\"Pid\":0/; s/\"StartedAt\":[0-9]*/\"StartedAt\":0/' \
         /var/lib/containerd/io.containerd.grpc.v1.cri/containers/{}/status && sync",
        place.container
    );
    scene.product.run_on_machine(machine, &script).await?;
    Ok(())
}

async fn a_machine_whose_power_fails_comes_back(scene: Scene) -> Result<()> {
    let machine = scene.product.add_machine(json!({})).await?;
    let (group, before) = group_on(&scene, &[1, machine]).await?;
    let name = node_name(machine);
    let lost = before.iter().find(|place| place.node == name);
    let lost = lost.with_context(|| format!("none is there: {before:#?}"))?;
    ensure!(before.iter().any(|place| place.node != name), "{before:#?}");
    forget_start(&scene, machine, lost).await?;
    scene.product.kill_machine(machine).await?;
    let (reason, message) = group.condition("RestartBlocked", START).await?;
    ensure!(
        reason == "NodeLost" && message.contains(&name),
        "{reason}: {message}"
    );
    group.status_has("/inPlaceRestart/generation", 0).await?;

    scene.product.boot_machine(machine).await?;
    let after = all_at(&group, 1, AGAIN).await?;
    for (before, after) in before.iter().zip(&after) {
        if before == lost {
            ensure!(
                before.uid == after.uid && before.container != after.container,
                "{before:#?} became {after:#?}"
            );
        } else {
            ensure!(
                before == after,
                "the healthy worker's place has changed: {after:#?}"
            );
        }
    }
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 0).await?;
    scene.product.remove_machine(machine).await
}
