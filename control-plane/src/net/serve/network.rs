//! Which addresses count as one client.

use std::net::{IpAddr, Ipv6Addr};

/// The network of a client: its IPv4 address, or the upper half of its IPv6 address, since one host may have all addresses of a /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let upper = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(upper))
        }
        address @ IpAddr::V4(_) => address,
    }
}
