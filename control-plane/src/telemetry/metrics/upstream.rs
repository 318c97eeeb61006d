//! Metrics under the names of controller-runtime and client-go, which upstream's controller has
//! from there.
//!
//! Promises: alerts and dashboards that were written for upstream's controller go on. Series whose
//! labels are known are there from the beginning.

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
