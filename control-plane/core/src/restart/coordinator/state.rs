//! The states of the machine, and the phases that users see of them.

use std::fmt::{self, Display, Formatter};

use super::UnixNanos;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A new leader gathers reports; it decides nothing.
    Recovering {
        until: UnixNanos,
    },
    InSync,
    Stopping {
        deadline: UnixNanos,
    },
    /// All workers are parked; the write is under way.
    Parked {
        deadline: UnixNanos,
    },
    Releasing {
        deadline: UnixNanos,
    },
    Recreating,
    Suspended,
    Failed,
}

impl State {
    pub(super) fn phase(self) -> GroupPhase {
        match self {
            Self::Recovering { .. } => GroupPhase::Recovering,
            Self::InSync => GroupPhase::InSync,
            Self::Stopping { .. } => GroupPhase::Stopping,
            Self::Parked { .. } => GroupPhase::Parked,
            Self::Releasing { .. } => GroupPhase::Releasing,
            Self::Recreating => GroupPhase::Recreating,
            Self::Suspended => GroupPhase::Suspended,
            Self::Failed => GroupPhase::Failed,
        }
    }
}

/// What a group is doing, as in the platform API's `GroupPhase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPhase {
    /// A new leader gathers the reports of the nodes.
    Recovering,
    /// All released workers run the same generation.
    InSync,
    /// Workers stop, and park at the desired generation.
    Stopping,
    /// All workers are parked, and the status is being written.
    Parked,
    /// Workers are released, and not all of them run yet.
    Releasing,
    /// The child Jobs are being recreated.
    Recreating,
    /// The JobSet is suspended.
    Suspended,
    /// `maxRestarts` is used up, or the failure policy has failed the JobSet.
    Failed,
}

impl GroupPhase {
    /// The name that logs and the platform API use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recovering => "Recovering",
            Self::InSync => "InSync",
            Self::Stopping => "Stopping",
            Self::Parked => "Parked",
            Self::Releasing => "Releasing",
            Self::Recreating => "Recreating",
            Self::Suspended => "Suspended",
            Self::Failed => "Failed",
        }
    }
}

impl Display for GroupPhase {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
