//! The control plane dies, and comes back.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::fixture::{alone, scene};
use crate::restarts::{ALL, create};
use crate::scene::{jobset, replicated_job};

#[test]
fn a_restart_whose_controller_is_killed_at_any_moment_ends_in_the_same_state() -> Result<()> {
    alone(async |world| {
        for millis in [0, 5, 10, 20, 40, 80, 160] {
            let scene = world.scene().await?;
            create(&scene, "Recreate", 3).await?;
            scene.until_jobs(&ALL, 0).await?;
            scene.all_pods_become("Running").await?;
            scene.pods_become("js-a-1", "Failed").await?;
            // Not to wait for anything: to hit another moment of the restart each time.
            tokio::time::sleep(Duration::from_millis(millis)).await;
            world.kill().await?;
            world.start().await?;
            scene.until_jobs(&ALL, 1).await?;
            scene.all_pods_become("Running").await?;
            scene.until_condition("RestartingJobSet", "False", "JobsReady").await?;
            let status = scene.status().await?;
            ensure!((status.restarts, status.restarts_count_towards_max) == (1, 1), "after {millis} ms: {status:?}");
            scene.until_jobs(&ALL, 1).await?;
            scene.end().await;
        }
        Ok(())
    })
}

#[test]
fn what_happens_while_nobody_looks_is_found() -> Result<()> {
    alone(async |world| {
        let (done, new) = (world.scene().await?, world.scene().await?);
        done.create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}))).await?;
        done.until_jobs(&["js-a-0"], 0).await?;
        world.kill().await?;
        done.pods_become("js-a-0", "Succeeded").await?;
        new.create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}))).await?;
        world.start().await?;
        done.until_condition("Completed", "True", "AllJobsCompleted").await?;
        new.until_jobs(&["js-a-0"], 0).await?;
        Ok(())
    })
}

#[test]
fn told_to_end_it_ends_at_once_and_the_next_one_leads_at_once() -> Result<()> {
    alone(async |world| {
        ensure!(world.stop().await?.success());
        world.start().await
    })?;
    scene(async |scene| {
        scene.create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}))).await?;
        scene.until_jobs(&["js-a-0"], 0).await?;
        Ok(())
    })
}
