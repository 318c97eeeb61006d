//! Metrics with the names of controller-runtime and client-go, which upstream's controller
//! inherits.
//!
//! Promises: alerts and dashboards for upstream's controller keep working. Series with known labels
//! exist from the start.

mod process;
mod queue;
mod reconciles;
mod requests;
mod webhooks;

pub(super) use process::Process;
pub(crate) use queue::Queue;
pub(super) use reconciles::Reconciles;
pub(crate) use requests::Requests;
pub(crate) use webhooks::Webhooks;
