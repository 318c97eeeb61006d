//! Certificates that the control plane makes for itself: the hub's, and those of the admission webhooks.

mod ca;
mod hub;
mod shared;

pub(crate) use ca::{Ca, Validity};
pub use hub::{CA_CONFIG_MAP, CA_SECRET, SERVER_NAME, TlsError, from_cluster, from_dir};
pub(crate) use shared::HubIdentity;
