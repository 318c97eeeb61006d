//! Identifiers of the restart protocol.

use std::fmt;
use std::sync::Arc;

pub use lockstep_protocol::{Epoch, Generation, UnixNanos};

/// One worker of a group, over all of its pods and containers. The group (the JobSet's UID) is
/// implied. Workers of one Job share its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Name of the child Job.
    pub job: Arc<str>,
    /// Completion index within the Job.
    pub index: u32,
    /// Name of the container.
    pub container: Arc<str>,
}

impl Identity {
    /// The place of its pod, as in the status: `<Job>/<completion index>`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", self.job, self.index)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]/{}", self.job, self.index, self.container)
    }
}

/// One container instance of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// UID of the pod.
    pub pod_uid: String,
    /// The container runtime's id of the container.
    pub container_id: String,
}
