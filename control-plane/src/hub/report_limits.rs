//! Reports of workers that are not kept: because no decision can use them, or because a daemon
//! could fill the leader's memory with them.

use lockstep_proto::node::v1 as pb;
use thiserror::Error;

/// Reports that are kept of one node, and read from one message. A real node runs some hundreds of
/// pods.
pub(super) const WORKERS_PER_NODE: usize = 4096;
/// Longest name, in bytes. Names in Kubernetes are at most DNS subdomains; container ids are much
/// shorter.
const LONGEST_NAME: usize = 253;
/// Longest UID, in bytes. UIDs of pods and JobSets have 36.
const LONGEST_UID: usize = 63;

/// Why a report is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ReportLimit {
    #[error("the node reports a worker without identity or phase")]
    Incomplete,
    #[error("the node reports a worker whose {what} has {length} bytes, and at most {most} are accepted")]
    TooLong {
        what: &'static str,
        length: usize,
        most: usize,
    },
    #[error("the node reports more than {WORKERS_PER_NODE} workers")]
    TooMany,
    #[error("the node reports a worker of one group as one of another group")]
    OtherGroup,
    #[error("the node reports a worker in another namespace than its group's")]
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

/// Checks that every text of a report is short enough to keep.
///
/// # Errors
/// [`ReportLimit::TooLong`] for the first text that is not.
pub(super) fn check_lengths(state: &pb::WorkerState) -> Result<(), ReportLimit> {
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
    let long = all.into_iter().find(|(_, text, most)| text.len() > *most);
    long.map_or(Ok(()), |(what, text, most)| {
        Err(ReportLimit::TooLong {
            what,
            length: text.len(),
            most,
        })
    })
}
