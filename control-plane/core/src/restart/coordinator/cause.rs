//! Why a restart begins, by where the evidence comes from.

use super::super::{Cause, Exit, Identity, Reason, Report};

impl Cause {
    /// A cause that concerns no worker in particular.
    pub(super) fn of_group(reason: Reason) -> Self {
        Self {
            reason,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
        }
    }

    /// A cause that concerns a worker of which no report tells.
    pub(super) fn unreported(reason: Reason, identity: &Identity) -> Self {
        Self {
            identity: Some(identity.clone()),
            ..Self::of_group(reason)
        }
    }

    /// A cause that the report of a worker tells of.
    pub(super) fn reported(reason: Reason, identity: &Identity, report: &Report, exit: Option<Exit>) -> Self {
        Self {
            reason,
            identity: Some(identity.clone()),
            pod: report.pod_name.clone(),
            node: report.node.clone(),
            exit,
            at: Some(report.since),
        }
    }
}
