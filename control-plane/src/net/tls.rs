//! TLS for the hub and the admission webhooks: certificates that the control plane generates, and
//! limits on unauthenticated connections.

mod admission;
mod allowance;
mod authority;
mod ca;
mod connection_limit;
pub(crate) mod expiry;
mod frames;
mod hub;
pub(crate) mod rotation;
mod serving;
mod shared;
mod slots;
mod steps;

pub(crate) use admission::{AdmittedStream, ConnectionHandle, UnauthenticatedStream};
pub use authority::{CA_SECRET, TlsError};
pub(crate) use ca::Validity;
pub(crate) use connection_limit::ConnectionLimit;
pub(crate) use hub::from_dir;
pub use hub::{CA_CONFIG_MAP, SERVER_NAME};
pub(crate) use serving::{Certificate, Current, accept, grpc};
pub(crate) use shared::HubIdentity;
