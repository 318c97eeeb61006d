//! Gangs of RayClusters.

use anyhow::{Result, ensure};
use kube::api::PostParams;
use lockstep_api::ray::{RayCluster, RayClusterState};
use lockstep_api::{GangPhase, JobSetStatus};
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::{self, POOL};
use serde_json::json;

use crate::fixture::{Case, case};
use crate::pool::Pool;
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(workers_of_ray_start_with_their_minimum_or_not_at_all)]
}

async fn workers_of_ray_start_with_their_minimum_or_not_at_all(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 2, 1).await?;
    let namespace = pool.scene.namespace.name.clone();
    let template = json!({"spec": {
        "nodeSelector": {POOL: namespace},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "ray", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
    }});
    let manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "rc"},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{"groupName": "small", "replicas": 3, "rayStartParams": {}, "template": template}],
            "gang": {"backend": "Gates", "replicatedJobs": [{"name": "small", "minAvailable": 2}]},
        },
    });
    let clusters = pool.scene.api::<RayCluster>();
    let manifest = serde_json::from_value(manifest)?;
    // The control plane installs the definition of RayClusters.
    eventually("the cluster is created", PATIENCE, async || {
        Ok(clusters.create(&PostParams::default(), &manifest).await?)
    })
    .await?;

    // One node is left besides the head's, and two workers need two.
    pool.until_pods("rc", 4).await?;
    // The head is a gang of its own.
    let waits = |status: &JobSetStatus| {
        let mut gangs = status.gangs.iter();
        gangs.any(|gang| {
            (gang.name.as_str(), gang.min_available, gang.phase.clone()) == ("small", 2, GangPhase::Waiting)
        })
    };
    pool.until_status("rc", "the workers wait", waits).await?;
    pool.until_bound("rc", &["head-0"]).await?;
    let more = async |name: &str| {
        let name = format!("{namespace}-{name}");
        hollow::create_nodes_named(&pool.scene.client(), &name, &namespace, 1, 1).await
    };
    more("second").await?;
    pool.until_bound("rc", &["head-0", "small-0", "small-1"]).await?;
    pool.until_phase("rc", GangPhase::Scheduled).await?;
    let until_ready = async |workers: i32| {
        eventually(&format!("{workers} workers are ready"), PATIENCE, async || {
            let status = clusters.get("rc").await?.status.unwrap_or_default();
            ensure!(status.ready_worker_replicas == workers, "{status:?}");
            Ok(status)
        })
        .await
    };
    let status = until_ready(2).await?;
    // The third comes when there is room.
    ensure!(
        status.state.is_none() && status.desired_worker_replicas == 3,
        "{status:?}"
    );
    more("third").await?;
    until_ready(3).await?;
    eventually("the cluster is ready", PATIENCE, async || {
        let status = clusters.get("rc").await?.status.unwrap_or_default();
        ensure!(status.state == Some(RayClusterState::ready), "{status:?}");
        Ok(())
    })
    .await
}
