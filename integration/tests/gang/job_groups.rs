//! Gangs beside a Job controller that makes groups of its own (`WorkloadWithJob`): only the gang
//! decides when a pod starts.
//!
//! The Job controller makes one for each Job whose template names no group, and would wait for
//! optional workers too.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use lockstep_api::{GangPhase, conditions};
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, eventually};
use serde_json::json;

use crate::control_plane::ControlPlane;
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, part};
use crate::scene::{PATIENCE, Scene};
use crate::told::note;
use crate::webhooks;

/// This case runs by itself, as it brings up a second cluster.
pub(crate) fn cases() -> Vec<Case> {
    vec![case!(no_pod_of_a_gang_is_in_a_group_of_the_job_controllers alone)]
}

async fn no_pod_of_a_gang_is_in_a_group_of_the_job_controllers(_: Scene) -> Result<()> {
    let spec = Spec::api_server().with_controllers().with_scheduler();
    let cluster = Cluster::up(spec.job_groups()).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let control_plane = ControlPlane::new(cluster.kubeconfig(), cluster.dir(), &[]).await?;
    control_plane.start().await?;
    control_plane.until_ready().await?;
    let scene = async || anyhow::Ok(Scene::new(access.namespace("gang").await?, control_plane.clone()));

    it_makes_groups(&scene().await?).await?;
    let (pool, _kubelets) = Pool::apart(scene().await?, 8, 1).await?;
    without_the_pod_webhook(&pool).await?;
    let with_webhooks = scene().await?;
    webhooks::enable_apart(&with_webhooks).await?;
    let (pool, _kubelets) = Pool::apart(with_webhooks, 5, 1).await?;
    with_the_pod_webhook(&pool, "PodGroup").await?;
    with_the_pod_webhook(&pool, "Gates").await?;
    control_plane.stop().await.map(drop)
}

/// The groups that pods name; `None` for pods without one.
fn groups<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<Option<String>> {
    let group = |pod: &Pod| {
        pod.spec
            .as_ref()?
            .scheduling_group
            .as_ref()?
            .pod_group_name
            .clone()
    };
    pods.into_iter().map(group).collect()
}

/// Otherwise the rest would prove nothing.
async fn it_makes_groups(scene: &Scene) -> Result<()> {
    let container = json!({"name": "worker", "image": "none"});
    let job = json!({"metadata": {"name": "plain"}, "spec": {
        "parallelism": 2, "completions": 2, "completionMode": "Indexed",
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }});
    scene
        .api::<Job>()
        .create(&PostParams::default(), &serde_json::from_value(job)?)
        .await?;
    eventually("the pods of a Job are in a group", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        let groups = groups(&pods);
        ensure!(
            pods.len() == 2 && groups.len() == 1 && !groups.contains(&None),
            "{groups:?}"
        );
        Ok(())
    })
    .await
}

async fn gone(pool: &Pool, set: &str) -> Result<()> {
    pool.delete(set).await?;
    pool.until_pods(set, 0).await.map(drop)
}

async fn without_the_pod_webhook(pool: &Pool) -> Result<()> {
    // The Jobs' templates name the gang's group, so that the Job controller makes none.
    let set = Set::new("whole", "PodGroup", [part("m", 2, 2, 1), part("w", 3, 3, 1)]);
    let made = pool.create(&set).await?;
    pool.until_phase("whole", GangPhase::Scheduled).await?;
    let podgroups = pool.scheduling("podgroups").await?;
    let workloads = pool.scheduling("workloads").await?;
    let owners: Vec<_> = podgroups
        .iter()
        .map(ResourceExt::owner_references)
        .chain(workloads.iter().map(ResourceExt::owner_references))
        .flatten()
        .map(|owner| owner.uid.clone())
        .collect();
    let uid = made.uid().unwrap_or_default();
    ensure!(
        owners == [uid.clone(), uid],
        "the Job controller made groups: {podgroups:?} {workloads:?}"
    );
    let groups_of_pods = groups(pool.pods("whole").await?.values());
    ensure!(
        groups_of_pods == BTreeSet::from([Some(podgroups[0].name_any())]),
        "{groups_of_pods:?}"
    );
    gone(pool, "whole").await?;

    // All gates are removed together, so the Job controller gets all the pods that it waits for.
    pool.create(&Set::new(
        "gates",
        "Gates",
        [part("m", 2, 2, 1), part("w", 3, 3, 1)],
    ))
    .await?;
    pool.until_phase("gates", GangPhase::Scheduled).await?;
    gone(pool, "gates").await?;

    // The Job controller's group holds back optional workers. Lockstep reports that, and the gang
    // that cannot start holds no node.
    pool.create(&Set::new("extras", "Gates", [part("w", 4, 3, 1)]).timeout(3))
        .await?;
    let said = note(pool, "extras", "GangFitUnknown").await?;
    ensure!(said.contains("schedulingGroup"), "{said}");
    pool.until_phase("extras", GangPhase::BackingOff).await?;
    let bound = pool.bound("extras").await?;
    ensure!(bound.is_empty(), "{bound:?}");
    gone(pool, "extras").await
}

/// Three of five pods are needed, and the templates name no group: the pod webhook takes the pods
/// out of the Job controller's group.
async fn with_the_pod_webhook(pool: &Pool, backend: &'static str) -> Result<()> {
    let name = format!("js-{}", backend.to_lowercase());
    pool.create(&Set::new(&name, backend, [part("w", 5, 3, 1)]))
        .await?;
    pool.until_phase(&name, GangPhase::Scheduled).await?;
    pool.until_bound(&name, &["w-0", "w-1", "w-2", "w-3", "w-4"])
        .await?;
    pool.until_condition(&name, conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    let pods = pool.pods(&name).await?;
    let of_jobset = pool.scheduling("podgroups").await?;
    let of_jobset = of_jobset.iter().filter(|group| {
        let mut owners = group.owner_references().iter();
        owners.any(|owner| owner.kind == "JobSet" && owner.name == name)
    });
    let ours: BTreeSet<Option<String>> = of_jobset.map(|group| Some(group.name_any())).collect();
    let minimum = groups(["w-0", "w-1", "w-2"].map(|place| &pods[place]));
    let optional = groups(["w-3", "w-4"].map(|place| &pods[place]));
    let none = BTreeSet::from([None]);
    let expected = if backend == "PodGroup" { &ours } else { &none };
    ensure!(
        minimum == *expected && minimum.len() == 1 && optional == none,
        "{backend}: {minimum:?} and {optional:?}, ours are {ours:?}"
    );
    gone(pool, &name).await
}
