//! Identifiers of the restart protocol.

use std::fmt;
use std::sync::Arc;

/// The count that all workers of a group should have: how often the group was restarted since its
/// JobSet was created. It never falls while the JobSet's UID lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The highest one that a status can hold.
    pub const LAST: Self = Self(u64::MAX >> 1);

    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1)).min(Self::LAST)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fences leaders: the Lease's resourceVersion at acquisition. Whatever carries a lower epoch than
/// the highest seen is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    /// Its pod's place, as the status names it: `<Job>/<completion index>`.
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

/// Nanoseconds since the Unix epoch. The shell derives it from a monotonic clock, so that a stepped
/// wall clock moves no deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixNanos(pub i64);

impl UnixNanos {
    /// This time plus `millis` milliseconds.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        let nanos = i64::try_from(millis)
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000_000);
        Self(self.0.saturating_add(nanos))
    }
}
