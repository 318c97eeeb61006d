//! Pods above the minimum.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use lockstep_api::{GangPhase, conditions};

use crate::cordon::cordon;
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, node, part};
use crate::scene::Scene;
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(volcano_1755_the_minimum_of_every_replicated_job_goes_before_optional_workers),
        case!(volcano_1755_the_minimum_goes_before_optional_workers_in_pod_groups),
        case!(optional_workers_that_never_start_keep_nobody_from_completing),
    ]
}

async fn minimum_before_optional_workers(pool: Pool, backend: &'static str) -> Result<()> {
    let set = Set::new("js", backend, [part("m", 5, 3, 1), part("w", 3, 2, 1)]);
    pool.create(&set).await?;
    let minimum = ["m-0", "m-1", "m-2", "w-0", "w-1"];
    pool.until_bound("js", &minimum).await?;
    pool.until_phase("js", GangPhase::Scheduled).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    pool.until_pods("js", 8).await?;
    let bound = pool.bound("js").await?;
    ensure!(bound == minimum, "{bound:?}");
    pool.more_nodes("more", 3).await?;
    let all = ["m-0", "m-1", "m-2", "m-3", "m-4", "w-0", "w-1", "w-2"];
    pool.until_bound("js", &all).await
}

async fn volcano_1755_the_minimum_of_every_replicated_job_goes_before_optional_workers(
    scene: Scene,
) -> Result<()> {
    minimum_before_optional_workers(Pool::new(scene, 5, 1).await?, "Gates").await
}

async fn volcano_1755_the_minimum_goes_before_optional_workers_in_pod_groups(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    minimum_before_optional_workers(Pool::new(scene, 5, 1).await?, "PodGroup").await
}

async fn optional_workers_that_never_start_keep_nobody_from_completing(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 2, 1).await?;
    pool.create(&Set::new("js", "Gates", [part("w", 4, 2, 1)]))
        .await?;
    pool.until_bound("js", &["w-0", "w-1"]).await?;
    let pods = pool.until_pods("js", 4).await?;
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    // Optional workers do not take what the minimum has left.
    let bound: Vec<_> = pods.values().filter(|pod| node(pod).is_some()).collect();
    for pod in &bound {
        cordon(&pool, node(pod).context("bound")?).await?;
    }
    for pod in bound {
        pool.succeed(pod).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    let jobs = pool.scene.api::<Job>().list(&ListParams::default()).await?;
    let succeeded = jobs
        .iter()
        .filter_map(|job| job.status.as_ref()?.succeeded)
        .sum::<i32>();
    // A Job that has not finished is deleted when its JobSet has completed.
    ensure!(
        jobs.items.is_empty() || succeeded == 2,
        "{succeeded} pods have succeeded"
    );
    Ok(())
}
