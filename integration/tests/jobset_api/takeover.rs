//! The control plane dies, and comes back.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::control_plane::ControlPlane;
use crate::faults::restarted_once;
use crate::fixture::{Case, case};
use crate::restarts::{ALL, create};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_restart_whose_controller_is_killed_at_any_moment_ends_in_the_same_state alone),
        case!(what_happens_while_nobody_looks_is_found alone),
        case!(told_to_end_it_ends_well_and_the_next_one_leads_at_once alone),
        case!(a_lease_that_is_given_up_is_taken_at_once alone),
        case!(a_leader_that_is_killed_is_followed_when_its_lease_is_over alone),
        case!(of_two_that_are_started_at_once_on_one_host_one_leads_and_the_other_follows alone),
    ]
}

async fn a_restart_whose_controller_is_killed_at_any_moment_ends_in_the_same_state(
    first: Scene,
) -> Result<()> {
    let control_plane = first.control_plane().clone();
    for millis in [0, 5, 10, 20, 40, 80, 160] {
        let scene = first.another().await?;
        create(&scene, "Recreate", 3).await?;
        scene.until_jobs(&ALL, 0).await?;
        scene.all_pods_become("Running").await?;
        scene.pods_become("js-a-1", "Failed").await?;
        // This waits for nothing: it hits a different moment of the restart each time.
        tokio::time::sleep(Duration::from_millis(millis)).await;
        control_plane.kill().await?;
        control_plane.start().await?;
        restarted_once(&scene, &ALL)
            .await
            .with_context(|| format!("killed after {millis} ms"))?;
        scene.namespace.delete().await?;
    }
    Ok(())
}

async fn what_happens_while_nobody_looks_is_found(done: Scene) -> Result<()> {
    let new = done.another().await?;
    done.create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    done.until_jobs(&["js-a-0"], 0).await?;
    done.control_plane().kill().await?;
    done.pods_become("js-a-0", "Succeeded").await?;
    new.create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    done.control_plane().start().await?;
    done.until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    new.until_jobs(&["js-a-0"], 0).await?;
    Ok(())
}

async fn told_to_end_it_ends_well_and_the_next_one_leads_at_once(scene: Scene) -> Result<()> {
    let status = scene.control_plane().stop().await?;
    ensure!(status.success(), "{status}");
    scene.control_plane().start().await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    Ok(())
}

async fn a_lease_that_is_given_up_is_taken_at_once(scene: Scene) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.stop().await?;
    let leases: Api<Lease> = Api::namespaced(scene.client(), "lockstep-system");
    let hold = async |holder: Option<&str>| {
        let patch = Patch::Merge(json!({"spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z",
        }}));
        leases
            .patch("lockstep-control-plane", &PatchParams::default(), &patch)
            .await
    };
    hold(Some("somebody")).await?;
    let waits = || control_plane.logged("waiting for leadership");
    let before = waits();
    control_plane.start().await?;
    let waiting = eventually("it waits", PATIENCE, async || {
        ensure!(waits() > before, "{}", control_plane.log());
        Ok(())
    })
    .await;
    // Other cases need the control plane whatever the result is.
    hold(None).await?;
    waiting?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    Ok(())
}

/// A dead leader is replaced soon.
const SHORT: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
];
/// The limit for that. With the default lease it would take 13 s at least.
const SOON: Duration = Duration::from_secs(12);

async fn a_leader_that_is_killed_is_followed_when_its_lease_is_over(scene: Scene) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.restart_with(&SHORT).await?;
    create(&scene, "Recreate", 3).await?;
    scene.until_jobs(&ALL, 0).await?;
    scene.all_pods_become("Running").await?;
    let next = control_plane.replica("next", &SHORT)?;
    let result = async {
        next.start().await?;
        eventually("it waits", PATIENCE, async || {
            ensure!(next.logged("waiting for leadership") > 0, "{}", next.log());
            Ok(())
        })
        .await?;
        control_plane.kill().await?;
        eventually("the other one leads", SOON, async || {
            ensure!(next.logged_with(&["leading", "epoch="]) > 0, "{}", next.log());
            Ok(())
        })
        .await?;
        scene.pods_become("js-a-1", "Failed").await?;
        scene.until_jobs(&ALL, 1).await?;
        Ok(())
    }
    .await;
    next.stop().await?;
    control_plane.start().await?;
    result
}

async fn of_two_that_are_started_at_once_on_one_host_one_leads_and_the_other_follows(
    scene: Scene,
) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.stop().await?;
    let twin = control_plane.twin(&[])?;
    let both = [control_plane, &twin];
    let led = |one: &ControlPlane| one.logged_with(&["leading", "epoch="]);
    let before = both.map(led);
    let leads = || {
        let leaders = both
            .into_iter()
            .zip(before)
            .filter(|(one, before)| led(one) > *before);
        leaders.map(|(one, _)| one).collect::<Vec<_>>()
    };
    let waited = control_plane.logged("waiting for leadership");
    // Both use the default hub port, which only one of them gets, and the default lease, which a
    // leader does not lose if the machine stalls for a moment.
    let flags = ["--hub-bind-address", ":9444"];
    let result = async {
        tokio::try_join!(control_plane.start_with(&flags), twin.start_with(&flags))?;
        eventually("both have come for the lease", PATIENCE, async || {
            ensure!(
                control_plane.logged("waiting for leadership") > waited,
                "{}",
                control_plane.log()
            );
            ensure!(twin.logged("waiting for leadership") > 0, "{}", twin.log());
            ensure!(!leads().is_empty(), "there is no leader");
            Ok(())
        })
        .await?;
        create(&scene, "Recreate", 3).await?;
        scene.until_jobs(&ALL, 0).await?;
        scene.all_pods_become("Running").await?;
        let [leader] = leads()[..] else {
            bail!("{} lead", leads().len());
        };
        leader.kill().await?;
        scene.pods_become("js-a-1", "Failed").await?;
        scene.until_jobs(&ALL, 1).await?;
        ensure!(leads().len() == 2, "only one replica has led");
        leader.start_with(&flags).await
    }
    .await;
    let stopped = (twin.stop().await, control_plane.stop().await);
    control_plane.start().await?;
    result.and(stopped.0.and(stopped.1).map(drop))
}
