//! Two replicas of the control plane: one of them is ready at any time, during drains and rollouts.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, EvictParams};
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::group::container_id;
use tokio::sync::watch;

use crate::chaos::storm::Storm;
use crate::support::{Case, Product, READY, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            limit: Duration::from_secs(900),
            ..case!(two_replicas_are_drained_and_rolled_out_in_a_storm_of_restarts alone)
        },
        Case {
            limit: Duration::from_secs(900),
            ..case!(the_last_replica_is_not_evicted alone)
        },
    ]
}

const NAMESPACE: &str = "lockstep-system";
/// The values of docs/install.md, but with the default times of the Lease: on a busy machine a
/// healthy leader may be unable to renew it within the short ones.
const REPLICAS: [&str; 2] = [
    "controller.replicas=2",
    "controller.podDisruptionBudget.enabled=true",
];
const NODES: [u8; 3] = [1, 2, 3];
/// The pause between two looks at the replicas.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of consecutive looks without a ready replica that counts as a failure, at least 5 s:
/// fewer may be a probe that is late on a busy machine.
const LOOKS: usize = 50;
/// How long the test repeats an eviction that is refused.
const REFUSED: Duration = Duration::from_secs(5);

/// Runs `act` while there are two replicas.
async fn with_replicas(scene: &Scene, act: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    scene.product.reinstall(&REPLICAS).await?;
    let result = async {
        both_are_there(scene).await?;
        act(scene).await
    };
    let result = Box::pin(result).await;
    // This comes back whatever the result: other cases expect one replica, and may use all nodes.
    let nodes = NODES.map(node_name);
    let uncordon = [&["uncordon"], nodes.each_ref().map(String::as_str).as_slice()].concat();
    let free = scene.access().kubectl(&uncordon, "").await.map(drop);
    let one = scene.product.reinstall(&[]).await;
    result.and(free).and(one)
}

/// Waits until both replicas are ready, and either may be evicted. The leader comes first.
async fn both_are_there(scene: &Scene) -> Result<[Pod; 2]> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scene.access().client.clone(), NAMESPACE);
    eventually("both replicas are ready", READY, async || {
        let (all, mut ready) = scene.product.replicas().await?;
        let leader = scene.product.leader().await?;
        ensure!(
            all.len() == 2 && ready.len() == 2,
            "{} of {} are",
            ready.len(),
            all.len()
        );
        // All former replicas are gone, and the budget counts these two.
        let status = budgets.get("lockstep-control-plane").await?.status;
        let status = status.context("no status")?;
        ensure!(
            status.disruptions_allowed == Some(1) && status.current_healthy == Some(2),
            "{status:?}"
        );
        ready.sort_by_key(|pod| pod.name_any() != leader);
        ensure!(
            ready[0].name_any() == leader,
            "{leader} leads, which is not there"
        );
        <[Pod; 2]>::try_from(ready).map_err(|pods| anyhow::anyhow!("{} replicas", pods.len()))
    })
    .await
}

fn node_of(pod: &Pod) -> Result<&str> {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .context("on no node")
}

async fn two_replicas_are_drained_and_rolled_out_in_a_storm_of_restarts(scene: Scene) -> Result<()> {
    with_replicas(&scene, async |scene| {
        let mut storm = Storm::gather(scene).await?;
        let replicas = both_are_there(scene).await?;
        let [leaders, others] = replicas.each_ref().map(node_of);
        // Drains both nodes at once: the budget makes one drain wait for the other.
        let drained = async {
            let (one, other) = tokio::join!(drain(scene, leaders?), drain(scene, others?));
            one.and(other)
        };
        storm
            .during(Box::pin(never_without(&scene.product, drained)))
            .await?;
        for node in NODES {
            scene
                .access()
                .kubectl(&["uncordon", &node_name(node)], "")
                .await?;
        }
        let drained = storm.restarts();
        for number in 1..=2 {
            let annotation = format!("controller.podAnnotations.rollout=number-{number}");
            let values = [REPLICAS.as_slice(), &[&annotation]].concat();
            let rolled_out = scene.product.reinstall(&values);
            storm
                .during(Box::pin(never_without(&scene.product, rolled_out)))
                .await?;
        }
        println!(
            "     {drained} restarts while both nodes were drained, {} in all",
            storm.restarts()
        );
        let now = both_are_there(scene).await?;
        for (before, now) in replicas
            .iter()
            .flat_map(|before| now.iter().map(move |now| (before, now)))
        {
            ensure!(before.uid() != now.uid(), "{} is still there", before.name_any());
        }
        Ok(())
    })
    .await
}

async fn the_last_replica_is_not_evicted(scene: Scene) -> Result<()> {
    with_replicas(&scene, async |scene| {
        let replicas = both_are_there(scene).await?;
        // Nothing may replace the first.
        for node in NODES {
            scene.access().kubectl(&["cordon", &node_name(node)], "").await?;
        }
        let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), NAMESPACE);
        let [first, second] = replicas.each_ref().map(ResourceExt::name_any);
        let plainly = EvictParams::default();
        pods.evict(&first, &plainly).await?;
        // A refusal asks the client to try again, which it does by itself.
        let evicted = tokio::time::timeout(REFUSED, pods.evict(&second, &plainly));
        match evicted.await {
            Err(_) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 429 => {}
            Ok(other) => bail!("{second} could be evicted after {first}: {other:?}"),
        }
        eventually("the second is there, and ready", READY, async || {
            let (_, ready) = scene.product.replicas().await?;
            ensure!(
                ready.iter().any(|pod| pod.name_any() == second),
                "{second} is not"
            );
            Ok(())
        })
        .await
    })
    .await
}

/// Evicts the replicas of the control plane from a node, as `kubectl drain` does: it tries again if
/// the budget refuses.
async fn drain(scene: &Scene, node: &str) -> Result<()> {
    let replicas = "--pod-selector=app.kubernetes.io/component=control-plane";
    let drain = ["drain", node, "--ignore-daemonsets", replicas, "--timeout=300s"];
    scene.access().kubectl(&drain, "").await.map(drop)
}

/// True if it has run, and is not being deleted.
fn is_there(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && container_id(pod, "control-plane").is_ok()
}

/// Observes the replicas while `act` runs: one must be ready at any time. Its probe may be late,
/// but every look must find one that has run and stays.
async fn never_without(product: &Product, act: impl Future<Output = Result<()>>) -> Result<()> {
    let (over, is_over) = watch::channel(false);
    let looked = async {
        let mut without = 0;
        while !*is_over.borrow() {
            // The API server may be busy.
            if let Ok((all, ready)) = product.replicas().await {
                ensure!(all.iter().any(is_there), "no replica is there: {all:#?}");
                without = if ready.is_empty() { without + 1 } else { 0 };
                ensure!(without < LOOKS, "no replica is ready");
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    };
    let acted = async {
        let acted = act.await;
        over.send_replace(true);
        acted
    };
    let (acted, looked) = tokio::join!(acted, looked);
    acted.and(looked)
}
