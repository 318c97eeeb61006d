//! Addresses of the API servers: the endpoints of the Service `kubernetes`.
//!
//! Any pod that reaches the webhook port can send bodies, and a tenant can have many pods. Bodies from API servers have priority.
//!
//! Promises: no address has priority if the endpoints cannot be read, if there are none, or until the first call from one of them arrives. API servers may call
//! from other addresses, such as those of a proxy or an overlay network.

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
/// How often it is read.
const EVERY: Duration = Duration::from_secs(60);
/// How soon it is read again where that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// More addresses are not kept. An EndpointSlice has up to 1,000.
const MOST: usize = 100;

/// The addresses that are known.
#[derive(Default)]
pub(super) struct ApiServers {
    known: RwLock<HashSet<IpAddr>>,
    /// Whether somebody has called from one of them.
    have_called: AtomicBool,
}

impl ApiServers {
    /// Whether the address is a known endpoint of an API server.
    pub(super) fn is_one(&self, address: IpAddr) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let is_one = known.contains(&address.to_canonical());
        if is_one {
            self.have_called.store(true, Ordering::Relaxed);
        }
        is_one
    }

    /// Whether bodies from this address have priority. All have it until the first call from a known endpoint.
    pub(super) fn goes_first(&self, address: IpAddr) -> bool {
        self.is_one(address) || !self.have_called.load(Ordering::Relaxed)
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
                // Those that were known are known still.
                Err(error) => {
                    tracing::debug!(%error, "the addresses of the API servers cannot be read");
                    AGAIN
                }
            };
            sleep(next).await;
        }
    }
}

/// The addresses of the slice that are addresses.
fn addresses(slice: &EndpointSlice) -> impl Iterator<Item = IpAddr> {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.flat_map(|endpoint| endpoint.addresses.iter().filter_map(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_endpoints_go_first_and_without_any_nobody_does() {
        let servers = ApiServers::default();
        let [server, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert!(servers.goes_first(server) && servers.goes_first(other));
        let slice = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["10.0.0.1"]}, {"addresses": ["nonsense"]}
        ]});
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        servers.set(addresses(&slice));
        assert!(servers.goes_first(other), "nobody has called from there");
        assert!(servers.goes_first(server) && !servers.goes_first(other));
        // As a socket for both families says it.
        assert!(servers.goes_first("::ffff:10.0.0.1".parse().unwrap()));
        assert!(servers.is_one(server) && !servers.is_one(other));
        servers.set([]);
        assert!(servers.goes_first(other) && !servers.is_one(other));
    }
}
