//! Addresses to listen on.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address to listen on, as Go programs take it: `host:port`, `:port` for all interfaces, `0` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindAddress(pub Option<SocketAddr>);

impl std::str::FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text == "0" {
            return Ok(Self(None));
        }
        let address = match text.strip_prefix(':') {
            Some(port) => port
                .parse()
                .ok()
                .map(|port| SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
            None => text.replace("localhost:", "127.0.0.1:").parse().ok(),
        };
        address
            .map(|address| Self(Some(address)))
            .ok_or_else(|| format!("{text:?} is not host:port, :port or 0"))
    }
}
