//! The chart's webhooks, for namespaces that ask for them, and its ServiceAccount.

#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/permissions.rs"]
pub(crate) mod permissions;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/setup.rs"]
mod setup;

pub(crate) use setup::enable;

use crate::scene::Scene;

/// Sends the objects of this namespace through the webhooks of a control plane that is not the
/// shared one, on its own API server.
pub(crate) async fn enable_apart(scene: &Scene) -> anyhow::Result<()> {
    let port = scene.control_plane().webhook_port();
    for manifest in setup::configurations(scene, "", "on", port, &[]).await? {
        setup::create(&scene.client(), manifest).await?;
    }
    setup::switch(scene, "on").await?;
    setup::until_served(scene).await
}
