//! What agents report about standbys: processes that are started ahead for the next attempt of a
//! worker.
//!
//! It is for people and for metrics. No decision depends on it, and a change of it alone calls for
//! no step.

pub use lockstep_protocol::standby::{Standbys, Starts};

/// How an agent has started its worker, and what it has started ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StandbyReport {
    /// How the processes of the current attempt were started. `None` before the first start.
    pub starts: Option<Starts>,
    /// The processes that wait for the next attempt. `None` if the worker asks for none.
    pub standbys: Option<Standbys>,
}
