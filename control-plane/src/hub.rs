//! The hub: node daemons connect here, report their workers and receive the desired state.
//!
//! [`Registry`] is the meeting point. Sessions (one per connected node) put reports in and take
//! desired state out; group tasks do the reverse. Neither waits for the other: each side keeps only
//! the newest value per worker and per group.

mod auth;
mod convert;
mod epoch_tracker;
mod health;
mod message_rate;
mod outbox;
mod protocol;
mod refusals;
mod registry;
mod report_limits;
mod role;
mod service;
mod session;

pub use auth::{
    AuthError, Authenticator, ClusterKeys, ClusterReviewer, Credentials, Expected, Issuer, KeyError,
    KeySource, ReviewError, Reviewer,
};
pub use convert::{GroupPolicy, TerminalRule};
pub use health::{Access, Daemon, Health};
pub use outbox::{NextMessage, Outbox};
pub use refusals::Refusals;
pub use registry::{Changes, GroupLink, Published, Registry, Unbelieved};
pub use role::Role;
pub(crate) use service::run;
pub use service::{Gate, HubService, serve_from_dir};

#[cfg(test)]
mod tests;
