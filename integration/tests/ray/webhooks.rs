//! The chart's webhooks with Ray's, for namespaces that ask for them, and its ServiceAccount.

use anyhow::Result;

use crate::scene::Scene;

#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/permissions.rs"]
pub(crate) mod permissions;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/setup.rs"]
mod setup;

/// Sends the objects of this namespace through the webhooks.
pub(crate) async fn enable(scene: &Scene) -> Result<()> {
    setup::enable_with(scene, &["ray.enabled=true"]).await
}
