//! A store that was restored from a backup reuses resource versions, and epochs come from these
//! versions.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::pods::{in_place, start, with_groups};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(epochs_go_on_above_those_of_before_a_restore alone)]
}

/// An epoch that no version of a test's store reaches.
const BEFORE_THE_RESTORE: u64 = 1_000_000_000_000;
/// Where the leader stores the epoch when versions are too low.
const EPOCH: &str = "lockstep.dev/epoch";

/// Waits for a leader with a higher epoch.
async fn above(scene: &Scene, before: u64) -> Result<u64> {
    let leases: Api<Lease> = Api::namespaced(scene.client(), "lockstep-system");
    eventually("a leader with a higher epoch", PATIENCE, async || {
        let lease = leases.get("lockstep-control-plane").await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        let epoch = annotations
            .get(EPOCH)
            .context("it is not written down")?
            .parse()?;
        ensure!(epoch > before, "{epoch} does not follow {before}");
        Ok(epoch)
    })
    .await
}

async fn epochs_go_on_above_those_of_before_a_restore(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        scene.create(in_place()).await?;
        scene.until_jobs(&["js-a-0"], 0).await?;
        let status = json!({"status": {"inPlaceRestart": {"kind": "Supervised", "phase": "InSync", "epoch": BEFORE_THE_RESTORE}}});
        let jobsets = scene.api::<JobSet>();
        jobsets
            .patch_status("js", &PatchParams::default(), &Patch::Merge(status))
            .await?;
        scene.control_plane().ends().await?;

        start(&scene, &[]).await?;
        let first = above(&scene, BEFORE_THE_RESTORE).await?;
        scene.control_plane().kill().await?;
        start(&scene, &[]).await?;
        let second = above(&scene, first).await?;

        // It acts again: a group that it could not write would stay unchanged.
        let request = json!({"metadata": {"annotations": {"lockstep.dev/restart-request": "now"}}});
        jobsets
            .patch("js", &PatchParams::default(), &Patch::Merge(request))
            .await?;
        scene
            .until_status("the request is handled", |status| {
                status.in_place_restart.as_ref().is_some_and(|state| {
                    state.handled_manual_request.as_deref() == Some("now")
                        && u64::try_from(state.epoch).is_ok_and(|epoch| epoch >= second)
                })
            })
            .await?;
        Ok(())
    });
    // The Lease keeps the epoch, and later leaders continue above it.
    with_groups(&scene, &[], body).await
}
