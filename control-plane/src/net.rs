//! TLS, limits on connections, and the servers on top of them.

pub mod serve;
pub mod tls;
