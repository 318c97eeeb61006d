//! Metrics, traces and logs.

pub(crate) mod log_limit;
pub mod logging;
pub mod metrics;
pub mod traces;
