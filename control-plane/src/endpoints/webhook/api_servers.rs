//! Addresses of the API servers: the endpoints of the Service `kubernetes`.
//!
//! Any pod that reaches the webhook port can send bodies, and a tenant can have many pods. Bodies
//! from API servers have priority.
//!
//! Promises: no address has priority if the endpoints cannot be read, if there are none, or until
//! the first call from one of them arrives. API servers may call from other addresses, such as
//! those of a proxy or an overlay network.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::time::sleep;

/// The Service of the API servers, and the EndpointSlice that they keep for it.
const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";
/// How often the slice is read.
const EVERY: Duration = Duration::from_secs(60);
/// How soon it is read again after a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// Most addresses that are kept. An EndpointSlice has up to 1,000.
const MOST: usize = 100;

/// The kind of a sender, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderClass {
    /// A known endpoint of an API server.
    ApiServer,
    /// Any other address, before the first call from a known endpoint. It may be an API server.
    Unidentified,
    /// Any other address after that.
    Other,
}

impl SenderClass {
    /// True if bodies of this class have priority over those of other addresses.
    pub(super) fn has_priority(self) -> bool {
        self != Self::Other
    }
}

/// The known addresses.
#[derive(Default)]
pub(super) struct ApiServers {
    known: RwLock<HashSet<IpAddr>>,
    /// True once a call has come from one of them.
    have_called: AtomicBool,
}

impl ApiServers {
    /// The class of a sender that has just called from this address.
    pub(super) fn class_of(&self, address: IpAddr) -> SenderClass {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&address.to_canonical()) {
            self.have_called.store(true, Ordering::Relaxed);
            SenderClass::ApiServer
        } else if self.have_called.load(Ordering::Relaxed) {
            SenderClass::Other
        } else {
            SenderClass::Unidentified
        }
    }

    /// Replaces the known addresses.
    pub(super) fn set(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = addresses.into_iter().map(|address| address.to_canonical());
        let addresses: HashSet<IpAddr> = addresses.take(MOST).collect();
        if addresses.is_empty() {
            self.have_called.store(false, Ordering::Relaxed);
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Keeps the addresses up to date. Cancel-safe.
    pub(super) async fn follow(&self, client: &Client) {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        loop {
            let next = match slices.get_opt(NAME).await {
                Ok(slice) => {
                    self.set(slice.iter().flat_map(addresses));
                    EVERY
                }
                // The known addresses stay.
                Err(error) => {
                    tracing::debug!(%error, "the addresses of the API servers cannot be read");
                    AGAIN
                }
            };
            sleep(next).await;
        }
    }
}

/// The IP addresses in the slice.
fn addresses(slice: &EndpointSlice) -> impl Iterator<Item = IpAddr> {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.flat_map(|endpoint| endpoint.addresses.iter().filter_map(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_have_priority_and_without_any_no_address_has() {
        let servers = ApiServers::default();
        let goes_first = |address: IpAddr| servers.class_of(address).has_priority();
        let is_one = |address: IpAddr| servers.class_of(address) == SenderClass::ApiServer;
        let [server, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert!(goes_first(server) && goes_first(other));
        let slice = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["10.0.0.1"]}, {"addresses": ["nonsense"]}
        ]});
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        servers.set(addresses(&slice));
        assert!(goes_first(other), "no call has come from there");
        assert!(goes_first(server) && !goes_first(other));
        // The form of a dual-stack socket.
        assert!(goes_first("::ffff:10.0.0.1".parse().unwrap()));
        assert!(is_one(server) && !is_one(other));
        servers.set([]);
        assert!(goes_first(other) && !is_one(other));
    }
}
