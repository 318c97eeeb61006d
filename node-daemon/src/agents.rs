//! The agents' side of the daemon: one Unix socket per pod, one task per connection.
//!
//! The socket identifies the pod, and the kernel identifies the container: the peer's cgroup must
//! be that of the container it registers for.

pub mod connection;
pub mod convert;
pub mod hostkill;
pub mod peer;
pub mod refusals;
pub mod sockets;
