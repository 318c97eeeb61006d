//! Certificates that the control plane makes for itself: the hub's, and those of the admission webhooks.

mod admission;
mod allowance;
mod authority;
mod ca;
mod door;
pub(crate) mod expiry;
mod frames;
mod hub;
pub(crate) mod rotation;
mod serving;
mod shared;

pub(crate) use admission::{Stay, Stranger, Visit};
pub(crate) use ca::Validity;
pub(crate) use door::Door;
pub(crate) use hub::from_dir;
pub use hub::{CA_CONFIG_MAP, CA_SECRET, SERVER_NAME, TlsError};
pub(crate) use serving::{Certificate, Current, accept, grpc};
pub(crate) use shared::HubIdentity;
