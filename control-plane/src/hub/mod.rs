//! The hub: node daemons connect here, report their workers and are told what should be.
//!
//! [`Registry`] is the meeting point. Sessions (one per connected node) put reports in and take desired state out; group tasks do the
//! reverse. Neither waits for the other: both sides are levels, kept as the newest value per worker and per group.

mod auth;
mod convert;
mod handshake;
mod registry;
mod rivals;
mod service;
mod session;

pub use auth::{AuthError, Authenticator, NodeIdentity, StaticToken};
pub use convert::{GroupPolicy, TerminalCode};
pub use registry::{GroupLink, Published, Registry};
pub use service::{HubService, serve};
pub use session::{Outbox, Taken};

#[cfg(test)]
mod tests;
