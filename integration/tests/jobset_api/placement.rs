//! Exclusive placement. The tests play the scheduler, and for some Jobs also the Job controller.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::{annotations, labels, naming};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, REFUSED, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_node_selector_strategy_puts_a_selector_and_a_toleration_on_pods),
        case!(misplaced_followers_are_marked_and_deleted_and_no_other_pods),
        case!(nothing_is_evicted_before_the_domain_of_the_leader_is_known),
    ]
}

pub(crate) const RACK: &str = "example.com/rack";
/// A finalizer that keeps a deleted pod visible.
const KEEP: &str = "example.com/keep";

/// A replicatedJob of Jobs with this many pods and these annotations.
fn annotated(name: &str, pods: i32, annotations: Value) -> Value {
    let mut job = replicated_job(name, 1);
    job["template"]["metadata"] = json!({"annotations": annotations});
    job["template"]["spec"]["parallelism"] = json!(pods);
    job["template"]["spec"]["completions"] = json!(pods);
    job
}

/// A replicatedJob with exclusive placement. The test creates its pods.
fn handmade(name: &str) -> Value {
    let mut job = annotated(name, 8, json!({annotations::EXCLUSIVE_TOPOLOGY: RACK}));
    job["template"]["spec"]["managedBy"] = json!("example.com/test");
    job
}

fn by_node_selector(name: &str, pods: i32) -> Value {
    let annotations = json!({
        annotations::EXCLUSIVE_TOPOLOGY: RACK,
        annotations::NODE_SELECTOR_STRATEGY: "true",
    });
    annotated(name, pods, annotations)
}

fn nodes(scene: &Scene) -> Api<Node> {
    Api::all(scene.namespace.access.client.clone())
}

/// A node of the scene's own.
pub(crate) async fn node(scene: &Scene, name: &str, labels: Value) -> Result<String> {
    let name = format!("{}-{name}", scene.namespace.name);
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": true}});
    nodes(scene)
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    Ok(name)
}

pub(crate) async fn pods_of(scene: &Scene, job: &str) -> Result<Vec<Pod>> {
    let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
    Ok(scene.api::<Pod>().list(&of_job).await?.items)
}

/// Waits for the Job controller, as some of its pods may have been refused.
pub(crate) async fn until_pods(scene: &Scene, job: &str, count: usize) -> Result<Vec<Pod>> {
    eventually(&format!("{count} pods of {job}"), REFUSED, async || {
        let pods = pods_of(scene, job).await?;
        ensure!(pods.len() == count, "{} pods", pods.len());
        Ok(pods)
    })
    .await
}

/// Plays the scheduler.
pub(crate) async fn bind(scene: &Scene, pod: &str, node: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"kind": "Node", "name": node},
    });
    let pods = scene.api::<Pod>();
    let _: Value = pods
        .create_subresource("binding", pod, &PostParams::default(), &binding)
        .await?;
    Ok(())
}

/// Plays the Job controller: the pod of a Job with this index, which selects `rack`.
///
/// Without the annotation that marks pods of JobSets for the pod webhook, the pod stays as the test
/// writes it.
async fn make(scene: &Scene, job: &str, index: u32, rack: Option<&str>) -> Result<String> {
    let job: Job = scene.api().get(job).await?;
    let template = job.spec.clone().context("no spec")?.template;
    let mut pod = Pod {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        status: None,
    };
    let name = format!("{}-{index}", job.name_any());
    pod.metadata.name = Some(name.clone());
    pod.metadata.finalizers = Some(vec![KEEP.to_owned()]);
    pod.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
    let notes = pod.annotations_mut();
    notes.remove(labels::JOBSET_NAME);
    notes.insert(labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_string());
    if let (Some(rack), Some(spec)) = (rack, &mut pod.spec) {
        spec.node_selector = Some([(RACK.to_owned(), rack.to_owned())].into());
    }
    scene.api().create(&PostParams::default(), &pod).await?;
    Ok(name)
}

fn disruption(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == "DisruptionTarget")
}

/// Waits until the pod is being deleted with the right reason, then removes its finalizer.
async fn until_evicted(scene: &Scene, name: &str) -> Result<()> {
    let pods = scene.api::<Pod>();
    let pod: Pod = eventually(&format!("{name} is deleted"), PATIENCE, async || {
        let pod = pods.get(name).await?;
        ensure!(pod.meta().deletion_timestamp.is_some(), "it is not");
        Ok(pod)
    })
    .await?;
    let condition = disruption(&pod).context("no condition")?;
    ensure!(
        (condition.status.as_str(), condition.reason.as_deref())
            == ("True", Some("ExclusivePlacementViolation")),
        "{condition:?}"
    );
    ensure!(
        condition.message.as_deref() == Some("Pod violated JobSet exclusive placement policy"),
        "{condition:?}"
    );
    ensure!(condition.last_transition_time.is_some());
    let let_go = json!({"metadata": {"finalizers": null}});
    pods.patch(name, &PatchParams::default(), &Patch::Merge(let_go))
        .await?;
    Ok(())
}

fn unharmed(pod: &Pod) -> Result<()> {
    ensure!(
        pod.meta().deletion_timestamp.is_none() && disruption(pod).is_none(),
        "{} was evicted",
        pod.name_any()
    );
    Ok(())
}

async fn the_node_selector_strategy_puts_a_selector_and_a_toleration_on_pods(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [by_node_selector("a", 2)]})))
        .await?;
    for pod in until_pods(&scene, "js-a-0", 2).await? {
        let spec = pod.spec.unwrap_or_default();
        let value = naming::namespaced_job(&scene.namespace.name, "js-a-0");
        ensure!(
            spec.node_selector == Some([(labels::NAMESPACED_JOB.to_owned(), value)].into()),
            "{:?}",
            spec.node_selector
        );
        let tolerations = spec.tolerations.unwrap_or_default();
        ensure!(
            tolerations.iter().any(|toleration| {
                toleration.key.as_deref() == Some(labels::NO_SCHEDULE_TAINT)
                    && toleration.operator.as_deref() == Some("Exists")
                    && toleration.effect.as_deref() == Some("NoSchedule")
            }),
            "{tolerations:?}"
        );
        ensure!(spec.affinity.is_none(), "{:?}", spec.affinity);
    }
    Ok(())
}

async fn misplaced_followers_are_marked_and_deleted_and_no_other_pods(scene: Scene) -> Result<()> {
    let plain = annotated("plain", 2, json!({}));
    scene
        .create(jobset(json!({
            "replicatedJobs": [handmade("a"), plain, by_node_selector("selected", 2)],
        })))
        .await?;
    scene
        .until_jobs(&["js-a-0", "js-plain-0", "js-selected-0"], 0)
        .await?;
    let node = node(&scene, "n", json!({RACK: "r1"})).await?;
    // Pods without exclusive placement are scheduled anywhere.
    let others = ["js-plain-0", "js-selected-0"];
    for job in others {
        for pod in until_pods(&scene, job, 2).await? {
            if pod.annotations()[labels::BATCH_JOB_COMPLETION_INDEX] == "0" {
                bind(&scene, &pod.name_any(), &node).await?;
            }
        }
    }
    let placed = make(&scene, "js-a-0", 1, Some("r1")).await?;
    let misplaced = make(&scene, "js-a-0", 2, Some("r2")).await?;
    let unplaced = make(&scene, "js-a-0", 3, None).await?;
    let leader = make(&scene, "js-a-0", 0, None).await?;
    for name in [&misplaced, &unplaced] {
        unharmed(&scene.api().get(name).await?)?;
    }
    bind(&scene, &leader, &node).await?;
    until_evicted(&scene, &misplaced).await?;
    until_evicted(&scene, &unplaced).await?;
    // The controller also checks pods that are created later, and checks all pods of the Job each
    // time.
    let late = make(&scene, "js-a-0", 4, Some("r2")).await?;
    until_evicted(&scene, &late).await?;
    for name in [&leader, &placed] {
        unharmed(&scene.api().get(name).await?)?;
    }
    for job in others {
        let pods = pods_of(&scene, job).await?;
        ensure!(pods.len() == 2);
        pods.iter().try_for_each(unharmed)?;
    }
    Ok(())
}

async fn nothing_is_evicted_before_the_domain_of_the_leader_is_known(scene: Scene) -> Result<()> {
    scene
        .create(jobset(json!({"replicatedJobs": [handmade("a"), handmade("b")]})))
        .await?;
    scene.until_jobs(&["js-a-0", "js-b-0"], 0).await?;
    let nameless = node(&scene, "nameless", json!({})).await?;
    let named = node(&scene, "named", json!({RACK: "r1"})).await?;
    let mut followers = Vec::new();
    for (job, node) in [("js-a-0", &nameless), ("js-b-0", &named)] {
        let leader = make(&scene, job, 0, None).await?;
        bind(&scene, &leader, node).await?;
        followers.push(make(&scene, job, 1, Some("r2")).await?);
    }
    // The controller checks the second Job after the first.
    until_evicted(&scene, &followers[1]).await?;
    unharmed(&scene.api().get(&followers[0]).await?)?;
    let label = json!({"metadata": {"labels": {RACK: "r1"}}});
    nodes(&scene)
        .patch(&nameless, &PatchParams::default(), &Patch::Merge(label))
        .await?;
    until_evicted(&scene, &followers[0]).await?;
    Ok(())
}
