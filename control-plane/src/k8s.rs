//! The API server: clients, watches and caches, writes, events, and how often and how much at once.

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
