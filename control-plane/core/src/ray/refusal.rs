//! Why a Ray resource is not run, and events about that.

use lockstep_api::ray::conditions;

use crate::common::violation::Violation;
use crate::jobset::plan::{Event, Severity};

/// An event with this reason.
pub(crate) fn event(severity: Severity, reason: &str, message: impl Into<String>) -> Event {
    Event {
        severity,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// Why a resource is not run, and the reason of the event about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Refusal {
    /// The faults of an object. Reason and first words are KubeRay's.
    pub(crate) fn invalid(kind: &str, violations: &[Violation]) -> Self {
        let is_named = |violation: &Violation| violation.field == "metadata.name";
        let (part, shown) = match violations.iter().any(is_named) {
            true => ("Metadata", "metadata"),
            false => ("Spec", "spec"),
        };
        let sentences: Vec<String> = violations.iter().map(ToString::to_string).collect();
        Self {
            reason: format!("Invalid{kind}{part}"),
            message: format!("The {kind} {shown} is invalid: {}", sentences.join("; ")),
        }
    }

    /// An object with a needed name has another owner.
    pub(crate) fn taken(message: String) -> Self {
        Self {
            reason: conditions::REPLICA_FAILURE.to_owned(),
            message,
        }
    }
}
