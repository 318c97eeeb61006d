//! Scheduled jobs. At least a minute passes between two starts: `make soak-ray` sets
//! LOCKSTEP_SOAK_RAY for that.

use anyhow::{Result, ensure};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use super::{PATIENCE, create, rayjob, with_ray};
use crate::support::{Case, Scene, case};

pub(super) fn cases() -> Vec<Case> {
    match std::env::var_os("LOCKSTEP_SOAK_RAY") {
        Some(_) => vec![case!(a_schedule_fires_twice alone)],
        None => Vec::new(),
    }
}

async fn a_schedule_fires_twice(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut job = rayjob("sh -c 'echo it is time'", 0)["spec"].take();
    job["shutdownAfterJobFinishes"] = json!(true);
    let manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCronJob",
        "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": job},
    });
    create(namespace, &manifest).await?;
    eventually("two RayJobs have run", PATIENCE * 2, async || {
        let args = [
            "get",
            "rayjobs",
            "--selector",
            "ray.io/cronjob-name=tick",
            "--output",
            "json",
        ];
        let jobs: Value = serde_json::from_str(&namespace.kubectl(&args).await?)?;
        let done: Vec<_> = jobs["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|job| job["status"]["jobStatus"] == "SUCCEEDED")
            .map(|job| job["metadata"]["name"].clone())
            .collect();
        ensure!(done.len() >= 2, "{done:?} of {}", jobs["items"]);
        Ok(())
    })
    .await?;
    namespace
        .kubectl(&["delete", "raycronjob", "tick", "--cascade=foreground"])
        .await
        .map(drop)
}
