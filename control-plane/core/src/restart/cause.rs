//! Why a group restarts.

use std::sync::Arc;

use super::{Exit, Identity, Progress, Report, UnixNanos};

/// Why a group restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The kind of evidence.
    pub reason: Reason,
    /// The affected worker.
    pub identity: Option<Identity>,
    /// Name of its pod, empty if unknown.
    pub pod: String,
    /// Its node, empty if unknown.
    pub node: String,
    /// How it ended, if known.
    pub exit: Option<Exit>,
    /// When it happened by the node's clock, if known.
    pub at: Option<UnixNanos>,
    /// What the worker had said of its work by then, if anything.
    pub said: Option<Arc<Progress>>,
}

impl Cause {
    /// A cause without a particular worker.
    pub(super) fn of_group(reason: Reason) -> Self {
        Self {
            reason,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
            said: None,
        }
    }

    /// A cause about a worker that comes from no report.
    pub(super) fn unreported(reason: Reason, identity: &Identity) -> Self {
        Self {
            identity: Some(identity.clone()),
            ..Self::of_group(reason)
        }
    }

    /// A cause that a worker's report shows.
    pub(super) fn reported(reason: Reason, identity: &Identity, report: &Report, exit: Option<Exit>) -> Self {
        Self {
            reason,
            identity: Some(identity.clone()),
            pod: report.pod_name.clone(),
            node: report.node.clone(),
            exit,
            at: Some(report.since),
            said: report.progress.clone(),
        }
    }
}

/// Declares the reasons. The name of each is used in status, events and metrics.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Kinds of evidence that start a restart or a recreation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name used in status, events and metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// The worker process exited by itself.
    WorkerExited,
    /// The worker's container is gone.
    ContainerLost,
    /// The pod was deleted, evicted or failed.
    PodLost,
    /// Not all workers were running again within `inplace-timeout`.
    TimedOut,
    /// A worker of an unfinished stage is already done and cannot be run again in place.
    WorkDone,
    /// A worker's pod was changed so that it has no agent, which would start it when it is
    /// released.
    StaysDown,
    /// A user or a platform has requested it.
    ManualRequest,
    /// A report contradicts the protocol.
    ProtocolError,
    /// The Job controller would replace a lost pod only after `inplace-timeout`.
    ReplacementLate,
    /// The worker runs, but has given no heartbeat within `lockstep.dev/heartbeat-timeout`.
    HeartbeatMissed,
    /// The worker was started, but was not up within `lockstep.dev/ready-timeout`.
    ReadyTimeout,
    /// The worker exited by itself soon after the restart in place for its failure: its pod is
    /// recreated.
    FailedAgain,
    /// The worker exited by itself soon after its pod was recreated: all Jobs are recreated.
    FailedInNewPod,
    /// A worker failed soon after a restart in place, and `maxRestarts` is used up: all Jobs are
    /// recreated once.
    LastResort,
}

impl Reason {
    /// The reason of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == name)
    }
}
