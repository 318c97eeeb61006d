//! States of workers that are not kept: nobody could act upon them, or a daemon that sends them
//! would fill the leader's memory.

use lockstep_proto::node::v1 as pb;
use thiserror::Error;

/// States that are kept of one node, and taken of one message. A node runs some hundreds of pods;
/// beyond this it is talking nonsense.
pub(super) const WORKERS_PER_NODE: usize = 4096;
/// Longest name, in bytes: those of Kubernetes are DNS subdomains at most, and container ids are
/// far below that.
const LONGEST_NAME: usize = 253;
/// Longest UID, in bytes: those of pods and JobSets have 36.
const LONGEST_UID: usize = 63;

/// Why a state is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ReportLimit {
    #[error("the node reports a worker without identity or phase")]
    Incomplete,
    #[error("the node reports a worker whose {what} has {length} bytes, and no more than {most} are taken")]
    TooLong {
        what: &'static str,
        length: usize,
        most: usize,
    },
    #[error("the node reports more than {WORKERS_PER_NODE} workers")]
    TooMany,
    #[error("the node says of a worker of one group that it is of another")]
    OtherGroup,
    #[error("the node reports a worker of another namespace than its group's")]
    OtherNamespace,
}

impl ReportLimit {
    /// Its name in metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete_worker",
            Self::TooLong { .. } => "long_name",
            Self::TooMany => "too_many_workers",
            Self::OtherGroup => "other_group",
            Self::OtherNamespace => "other_namespace",
        }
    }
}

/// Checks that all that is kept of a state is short enough.
///
/// # Errors
/// What is not.
pub(super) fn is_short(state: &pb::WorkerState) -> Result<(), ReportLimit> {
    let none = pb::Incarnation::default();
    let incarnation = state.incarnation.as_ref().unwrap_or(&none);
    let all = [
        ("group UID", &state.group_uid, LONGEST_UID),
        ("pod UID", &incarnation.pod_uid, LONGEST_UID),
        ("container id", &incarnation.container_id, LONGEST_NAME),
        ("job", &state.job, LONGEST_NAME),
        ("container", &state.container, LONGEST_NAME),
        ("pod", &state.pod_name, LONGEST_NAME),
        ("namespace", &state.pod_namespace, LONGEST_NAME),
    ];
    let long = all.into_iter().find(|(_, said, most)| said.len() > *most);
    long.map_or(Ok(()), |(what, said, most)| {
        Err(ReportLimit::TooLong {
            what,
            length: said.len(),
            most,
        })
    })
}
