//! What others call: the platform API with the status page, and the webhooks.

pub mod platform;
pub mod webhook;
