//! The chart's ServiceAccount has the rights that Ray's controllers need.

use anyhow::Result;
use lockstep_api::ray::RayJobDeploymentStatus as Phase;
use serde_json::json;

use crate::cluster::service_is_replaced;
use crate::fixture::{Case, case};
use crate::job::{delete, patch, ray_is, ray_says, running, submits, until_phase};
use crate::scene::Scene;
use crate::webhooks::permissions;

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(the_chart_allows_what_ray_takes alone)]
}

async fn the_chart_allows_what_ray_takes(scene: Scene) -> Result<()> {
    let control_plane = scene.control_plane();
    permissions::grant(&scene, &["ray.enabled=true"]).await?;
    let file = control_plane.dir().join("ray.kubeconfig");
    permissions::kubeconfig(&scene, &file).await?;
    control_plane.kill().await?;
    control_plane.restore(file).await?;
    let seen = running(
        &scene,
        json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1}),
    )
    .await?;
    ray_says(&seen, "FAILED");
    until_phase(&scene, Phase::Retrying).await?;
    ray_is(&seen, "s1");
    submits(&scene).await?;
    patch(&scene, json!({"spec": {"suspend": true}})).await?;
    until_phase(&scene, Phase::Suspended).await?;
    scene.until_event_of("RayJob", "Suspended").await?;
    service_is_replaced(&scene).await?;
    delete(&scene).await
}
