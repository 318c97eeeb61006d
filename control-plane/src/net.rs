//! TLS, connection limits, and the servers that use them.

pub mod serve;
pub mod tls;
