//! The interfaces of the control plane: the platform API, the status page and the webhooks.

pub mod platform;
pub mod webhook;
