//! What the caller may do.

use super::{Observed, Report};

/// Something that a command needs the right to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) verb: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) subresource: &'static str,
    /// In Lockstep's namespace; else in that of the JobSets.
    pub(crate) of_system: bool,
    /// What does not work without it.
    needed_for: &'static str,
}

const fn right(
    verb: &'static str,
    (group, resource, subresource): (&'static str, &'static str, &'static str),
    of_system: bool,
    needed_for: &'static str,
) -> Right {
    Right {
        verb,
        group,
        resource,
        subresource,
        of_system,
        needed_for,
    }
}

/// What the commands need.
pub(crate) const REQUIRED_RIGHTS: [Right; 8] = [
    right(
        "list",
        ("jobset.x-k8s.io", "jobsets", ""),
        false,
        "status shows no JobSets",
    ),
    right(
        "patch",
        ("jobset.x-k8s.io", "jobsets", ""),
        false,
        "restart, suspend and resume are refused",
    ),
    right(
        "list",
        ("batch", "jobs", ""),
        false,
        "status and restart --wait are refused",
    ),
    right(
        "list",
        ("", "pods", ""),
        false,
        "status and restart --wait are refused",
    ),
    right(
        "list",
        ("events.k8s.io", "events", ""),
        false,
        "history shows the last restart alone",
    ),
    right(
        "get",
        ("coordination.k8s.io", "leases", ""),
        true,
        "the leader is not found",
    ),
    right(
        "create",
        ("", "pods", "portforward"),
        true,
        "the platform API is reached by --server alone",
    ),
    right(
        "get",
        ("", "configmaps", ""),
        true,
        "the platform API's certificate cannot be checked",
    ),
];

impl Right {
    /// As `kubectl auth can-i` takes it.
    fn words(&self) -> String {
        let mut words = format!("{} {}", self.verb, self.resource);
        if !self.group.is_empty() {
            words = format!("{words}.{}", self.group);
        }
        if !self.subresource.is_empty() {
            words = format!("{words}/{}", self.subresource);
        }
        words
    }
}

pub(super) fn check(seen: &Observed, report: &mut Report) {
    report.section("your rights");
    let mut lacking = false;
    for (right, allowed) in REQUIRED_RIGHTS.iter().zip(&seen.rights) {
        if report.fetched(&right.words(), allowed) == Some(&false) {
            lacking = true;
            let place = if right.of_system {
                &seen.namespace
            } else {
                "the namespace of the JobSets"
            };
            report.warning(
                format!("you may not {} in {place}", right.words()),
                format!("without it {}", right.needed_for),
            );
        }
    }
    if !lacking && seen.rights.iter().all(Result::is_ok) {
        report.ok("you may do all that the commands need");
    }
}
