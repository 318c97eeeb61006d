//! The caller's rights.

use super::{Observed, Report};

/// A right that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) verb: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) subresource: &'static str,
    /// Needed in Lockstep's namespace; otherwise in that of the JobSets.
    pub(crate) of_system: bool,
    /// What happens without it.
    without: &'static str,
}

const fn right(
    verb: &'static str,
    (group, resource, subresource): (&'static str, &'static str, &'static str),
    of_system: bool,
    without: &'static str,
) -> Right {
    Right {
        verb,
        group,
        resource,
        subresource,
        of_system,
        without,
    }
}

/// The rights that the commands need.
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
        "history shows only the last restart",
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
        "the platform API is reached only with --server",
    ),
    right(
        "get",
        ("", "configmaps", ""),
        true,
        "the platform API's certificate cannot be checked",
    ),
];

impl Right {
    /// The arguments of `kubectl auth can-i` for it.
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
                format!("without it {}", right.without),
            );
        }
    }
    if !lacking && seen.rights.iter().all(Result::is_ok) {
        report.ok("you have all rights that the commands need");
    }
}
