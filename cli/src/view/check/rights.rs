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

/// Group, resource and subresource.
type Resource = (&'static str, &'static str, &'static str);

/// A right in the namespace of the JobSets.
const fn of_jobsets(
    verb: &'static str,
    (group, resource, subresource): Resource,
    without: &'static str,
) -> Right {
    Right {
        verb,
        group,
        resource,
        subresource,
        of_system: false,
        without,
    }
}

/// The same in Lockstep's namespace.
const fn of_system(verb: &'static str, resource: Resource, without: &'static str) -> Right {
    Right {
        of_system: true,
        ..of_jobsets(verb, resource, without)
    }
}

/// The rights that the commands need.
pub(crate) const REQUIRED_RIGHTS: [Right; 8] = [
    of_jobsets(
        "list",
        ("jobset.x-k8s.io", "jobsets", ""),
        "status shows no JobSets",
    ),
    of_jobsets(
        "patch",
        ("jobset.x-k8s.io", "jobsets", ""),
        "restart, suspend and resume are refused",
    ),
    of_jobsets(
        "list",
        ("batch", "jobs", ""),
        "status and restart --wait are refused",
    ),
    of_jobsets("list", ("", "pods", ""), "status and restart --wait are refused"),
    of_jobsets(
        "list",
        ("events.k8s.io", "events", ""),
        "history shows only the last restart",
    ),
    of_system(
        "get",
        ("coordination.k8s.io", "leases", ""),
        "the leader is not found",
    ),
    of_system(
        "create",
        ("", "pods", "portforward"),
        "the platform API is reached only with --server",
    ),
    of_system(
        "get",
        ("", "configmaps", ""),
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
