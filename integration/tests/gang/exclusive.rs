//! Gangs whose Jobs each have a topology domain of their own.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams};
use lockstep_api::{GangPhase, annotations, labels};
use lockstep_integration::harness::eventually;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, WHILE, node, part};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(exclusively_placed_jobs_of_a_gang_start_when_there_is_a_rack_for_each),
        case!(jobs_with_nodes_of_their_own_start_by_a_pod_group),
    ]
}

const RACK: &str = "test.lockstep.dev/rack";
const BOTH: [&str; 6] = ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"];

/// Labels the node of this number.
async fn label(pool: &Pool, number: usize, key: &str, value: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(pool.scene.client());
    let name = format!("{}-{number}", pool.scene.namespace.name);
    let label = json!({"metadata": {"labels": {key: value}}});
    nodes
        .patch(&name, &PatchParams::default(), &Patch::Merge(label))
        .await?;
    Ok(())
}

/// For each replicatedJob, the values of this label on the nodes of its pods.
async fn domains(pool: &Pool, set: &str, key: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let nodes: Api<Node> = Api::all(pool.scene.client());
    let mut domains: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (place, pod) in pool.pods(set).await? {
        let node = nodes.get(node(&pod).context("not bound")?).await?;
        let domain = node.metadata.labels.and_then(|labels| labels.get(key).cloned());
        let job = place.split('-').next().unwrap_or_default().to_owned();
        domains
            .entry(job)
            .or_default()
            .insert(domain.context("no label")?);
    }
    Ok(domains)
}

/// With placement by affinity a follower is created after its leader is scheduled. So gates start
/// the gang, whichever backend is asked for.
async fn exclusively_placed_jobs_of_a_gang_start_when_there_is_a_rack_for_each(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    let pool = Pool::new(scene, 4, 2).await?;
    for number in 0..4 {
        label(&pool, number, RACK, if number < 2 { "left" } else { "right" }).await?;
    }
    for backend in ["Gates", "PodGroup"] {
        let exclusive = |name: &str, parts| {
            let mut set = Set::new(name, backend, parts);
            set.annotations.insert(annotations::EXCLUSIVE_TOPOLOGY, RACK);
            set
        };
        let [first, second] = ["first", "second"].map(|name| format!("{name}-{}", backend.to_lowercase()));
        pool.create(&exclusive(&first, vec![part("w", 1, 1, 1)])).await?;
        pool.until_phase(&first, GangPhase::Scheduled).await?;
        // There would be room for all pods, but one rack is taken.
        let parts = vec![part("a", 3, 3, 1), part("b", 3, 3, 1)];
        pool.create(&exclusive(&second, parts)).await?;
        pool.until_status(&second, "it says what is missing", |status| {
            let gang = status.gangs.first();
            gang.is_some_and(|gang| gang.phase == GangPhase::Waiting && gang.message.is_some())
        })
        .await?;
        tokio::time::sleep(WHILE).await;
        let bound = pool.bound(&second).await?;
        ensure!(
            bound.is_empty(),
            "{backend}: {bound:?} although a rack is missing"
        );
        pool.delete(&first).await?;
        pool.until_bound(&second, &BOTH).await?;
        let domains = domains(&pool, &second, RACK).await?;
        ensure!(
            domains["a"].len() == 1 && domains["b"].len() == 1 && domains["a"] != domains["b"],
            "{backend}: {domains:?}"
        );
        pool.until_phase(&second, GangPhase::Scheduled).await?;
        pool.delete(&second).await?;
        pool.until_pods(&second, 0).await?;
    }
    eventually("it is said why there is no PodGroup", PATIENCE, async || {
        let events = pool.scene.api::<Event>().list(&ListParams::default()).await?;
        let mut told = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("GangBackendUnavailable"));
        let note = told.find_map(|event| event.note.as_deref()).context("not yet")?;
        ensure!(note.contains("placed exclusively by affinity"), "{note}");
        Ok(())
    })
    .await
}

/// The nodes are labelled for each Job beforehand: kube-scheduler binds all pods together.
async fn jobs_with_nodes_of_their_own_start_by_a_pod_group(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    let pool = Pool::new(scene, 4, 2).await?;
    let namespace = pool.scene.namespace.name.clone();
    for number in 0..3 {
        let job = if number < 2 { "js-a-0" } else { "js-b-0" };
        label(
            &pool,
            number,
            labels::NAMESPACED_JOB,
            &format!("{namespace}_{job}"),
        )
        .await?;
    }
    let mut set = Set::new("js", "PodGroup", [part("a", 3, 3, 1), part("b", 3, 3, 1)]);
    set.annotations
        .insert(annotations::EXCLUSIVE_TOPOLOGY, "kubernetes.io/hostname");
    set.annotations
        .insert(annotations::NODE_SELECTOR_STRATEGY, "true");
    pool.create(&set).await?;
    let pods = pool.until_pods("js", 6).await?;
    let grouped = pods.values().all(|pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.scheduling_group.is_some())
    });
    ensure!(grouped, "not in a group: {pods:?}");
    // One node has room for two of the second Job's three pods.
    tokio::time::sleep(WHILE).await;
    let bound = pool.bound("js").await?;
    ensure!(bound.is_empty(), "{bound:?} although a node is missing");
    label(&pool, 3, labels::NAMESPACED_JOB, &format!("{namespace}_js-b-0")).await?;
    pool.until_bound("js", &BOTH).await?;
    let domains = domains(&pool, "js", labels::NAMESPACED_JOB).await?;
    ensure!(
        domains["a"].len() == 1 && domains["b"].len() == 1 && domains["a"] != domains["b"],
        "{domains:?}"
    );
    pool.until_phase("js", GangPhase::Scheduled).await?;
    Ok(())
}
