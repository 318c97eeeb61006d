//! The epoch of a leader, taken from the Lease.
//!
//! Promises: it is higher than the epoch of every former leader, and than the epoch that the
//! Lease's annotation states.

use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use lockstep_core::restart::Epoch;
use serde_json::json;

use super::leader_address::HUB_ADDRESS;
use super::{LEADER_PROCESS, LeaseError, retry_on_conflict};

/// Annotation of the Lease: the highest epoch that is known to be used. It exists only after the
/// store was restored from a backup. Then resource versions, which epochs are taken from, are lower
/// than those that nodes have seen.
pub(super) const EPOCH: &str = "lockstep.dev/epoch";

/// Writes the Lease, so that its resourceVersion is higher than the epoch of every former leader.
/// After a restore that is not enough. Then the epoch is one above the last, and is stored in the
/// annotation.
pub(super) async fn new_epoch<P>(
    leases: &Api<Lease>,
    name: &str,
    (process, hub): (&str, Option<SocketAddr>),
    params: &PatchParams,
    patch: P,
) -> Result<Epoch, LeaseError>
where
    P: Fn(serde_json::Value) -> Patch<serde_json::Value>,
{
    let hub = hub.map(|address| address.to_string()).unwrap_or_default();
    let claim = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": {LEADER_PROCESS: process, HUB_ADDRESS: hub}},
    });
    retry_on_conflict(|| async {
        let lease = leases
            .patch(name, params, &patch(claim.clone()))
            .await
            .map_err(Box::new)?;
        let version = lease.metadata.resource_version.as_deref();
        let Some(epoch) = version.and_then(|text| text.parse().ok()).map(Epoch) else {
            return Err(LeaseError::Version(lease.metadata.resource_version));
        };
        let Some(floor) = floor(&lease).filter(|floor| *floor >= epoch) else {
            return Ok(epoch);
        };
        let above = Epoch(floor.0.saturating_add(1));
        raise(leases, &lease, above).await?;
        Ok(above)
    })
    .await
}

/// Stores an epoch in the annotation, on top of exactly this version of the Lease.
pub(super) async fn raise(leases: &Api<Lease>, on: &Lease, epoch: Epoch) -> Result<(), LeaseError> {
    let name = on.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {
        "resourceVersion": on.metadata.resource_version,
        "annotations": {EPOCH: epoch.0.to_string()},
    }});
    leases
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(Box::new)?;
    tracing::warn!(epoch = epoch.0, "continuing above an epoch that was used before");
    Ok(())
}

/// The epoch in the annotation, if there is one.
pub(super) fn floor(lease: &Lease) -> Option<Epoch> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(EPOCH)?.parse().ok().map(Epoch)
}
