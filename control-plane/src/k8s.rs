//! Everything that talks to the API server: clients and their rate limits, watches and caches,
//! writes, events.

pub(crate) mod api_thread;
pub mod apply;
pub mod backwards;
pub(crate) mod client;
pub(crate) mod controller_loop;
pub(crate) mod crd;
pub(crate) mod decode_error;
pub(crate) mod event_queue;
pub(crate) mod huge_lock;
pub(crate) mod memory_limit;
pub(crate) mod namespace;
pub(crate) mod retry;
pub mod watch;
