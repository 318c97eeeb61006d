//! An API server that fails, and a control plane that dies between any two of its writes: the
//! result is the same.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::proxy::{Mode, Proxy};
use crate::restarts::{ALL, create};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(an_api_server_that_fails_at_everything_delays_and_changes_nothing alone),
        case!(killed_between_any_two_writes_it_ends_in_the_same_state alone),
    ]
}

/// Restarts the control plane behind a new proxy.
async fn through_proxy(scene: &Scene, mode: Mode) -> Result<(Proxy, PathBuf)> {
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().to_owned();
    let proxy = Proxy::start(scene.namespace.access.client.clone(), &dir).await?;
    proxy.set(mode);
    control_plane.stop().await?;
    let direct = control_plane.go_through(proxy.kubeconfig.clone());
    control_plane.start().await?;
    Ok((proxy, direct))
}

/// Restarts the control plane without the proxy.
async fn directly(scene: &Scene, direct: PathBuf) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.kill().await?;
    control_plane.go_through(direct);
    control_plane.start().await?;
    control_plane.until_ready().await
}

async fn an_api_server_that_fails_at_everything_delays_and_changes_nothing(scene: Scene) -> Result<()> {
    let (_proxy, direct) = through_proxy(&scene, Mode::Chaos).await?;
    let result = live_through_all(&scene).await;
    directly(&scene, direct).await?;
    result
}

/// A restart, a sequence, and a suspension.
async fn live_through_all(scene: &Scene) -> Result<()> {
    create(scene, "Recreate", 3).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    scene.pods_become("js-a-1", "Failed").await?;
    restarted_once(scene, &ALL).await?;

    let sequence = scene.another().await?;
    let mut second = replicated_job("b", 2);
    second["dependsOn"] = json!([{"name": "a", "status": "Complete"}]);
    let jobs = [replicated_job("a", 2), second];
    sequence
        .create(jobset(json!({"suspend": true, "replicatedJobs": jobs})))
        .await?;
    sequence
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    sequence.patch(json!({"spec": {"suspend": false}})).await?;
    for job in ["js-a-0", "js-a-1", "js-b-0", "js-b-1"] {
        eventually(&format!("{job} is there"), PATIENCE, async || {
            let jobs = sequence.api::<Job>().list(&ListParams::default()).await?.items;
            ensure!(jobs.iter().any(|seen| seen.name_any() == job));
            Ok(())
        })
        .await?;
        sequence.pods_become(job, "Succeeded").await?;
    }
    let status = sequence
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    ensure!(status.restarts == 0);
    sequence.namespace.delete().await
}

/// Checks that the JobSet has restarted exactly once, and that its pods run.
pub(crate) async fn restarted_once(scene: &Scene, jobs: &[&str]) -> Result<()> {
    scene.until_jobs(jobs, 1).await?;
    scene.all_pods_become("Running").await?;
    scene
        .until_condition("RestartingJobSet", "False", "JobsReady")
        .await?;
    let status = scene.status().await?;
    let restarts = (status.restarts, status.restarts_count_towards_max);
    ensure!(restarts == (1, 1), "{restarts:?}");
    scene.until_jobs(jobs, 1).await?;
    Ok(())
}

/// The fewest writes that a restart can have.
fn two_jobs() -> serde_json::Value {
    jobset(json!({"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": [replicated_job("a", 2)]}))
}

const TWO: [&str; 2] = ["js-a-0", "js-a-1"];

async fn killed_between_any_two_writes_it_ends_in_the_same_state(first: Scene) -> Result<()> {
    /// More writes than a restart can need.
    const MOST: u32 = 40;
    let control_plane = first.control_plane().clone();
    let (proxy, direct) = through_proxy(&first, Mode::Pass).await?;
    let mut writes = 0;
    let result = loop {
        proxy.set(Mode::StopAfter(writes));
        let scene = first.another().await?;
        let restart = async {
            scene.create(two_jobs()).await?;
            scene.until_jobs(&TWO, 0).await?;
            scene.all_pods_become("Running").await?;
            scene.pods_become("js-a-1", "Failed").await?;
            restarted_once(&scene, &TWO).await
        };
        let mut restart = std::pin::pin!(restart);
        let early = tokio::select! {
            result = &mut restart => Some(result),
            () = proxy.until_stopped() => None,
        };
        let killed = proxy.has_stopped();
        if killed {
            control_plane.kill().await?;
            proxy.set(Mode::Pass);
            control_plane.start().await?;
        }
        let result = match early {
            Some(result) => result,
            None => restart.await,
        };
        scene.namespace.delete().await?;
        if let Err(error) = result {
            break Err(error.context(format!("killed after {writes} writes")));
        }
        if !killed {
            break Ok(());
        }
        writes += 1;
        if writes > MOST {
            break Err(anyhow::anyhow!("a restart needs more than {MOST} writes"));
        }
    };
    directly(&first, direct).await?;
    result?;
    // Service, two Jobs, the new attempt, two deletions, two Jobs again: at least.
    ensure!(writes >= 8, "only {writes} writes were seen");
    Ok(())
}
