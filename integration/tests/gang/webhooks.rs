//! The chart's webhooks, for namespaces that ask for them, and its ServiceAccount.

#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/permissions.rs"]
pub(crate) mod permissions;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/webhooks/setup.rs"]
mod setup;

pub(crate) use setup::enable;
