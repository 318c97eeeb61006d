//! Why an object is refused, as the API server reports it.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use lockstep_core::common::violation::{Kind, Violation};
use thiserror::Error;

/// Why an object is refused.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    /// It cannot be read; the message names the field.
    #[error("{0}")]
    Unreadable(String),
    /// It lacks a required field; the message names it.
    #[error("{0}")]
    Incomplete(String),
    /// It is invalid.
    #[error("{}", invalid(&format!("{kind}.{group}"), name, violations))]
    Invalid {
        group: &'static str,
        kind: String,
        name: String,
        violations: Vec<Violation>,
    },
    /// It is forbidden, or not allowed yet.
    #[error("{0}")]
    Forbidden(String),
    /// The check itself failed.
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    /// The status, in the form of the API server's own (`apierrors.NewInvalid` for invalid
    /// objects).
    pub(super) fn status(&self) -> Status {
        let (code, reason) = match self {
            Self::Unreadable(_) | Self::Incomplete(_) => (400, "BadRequest"),
            Self::Invalid { .. } => (422, "Invalid"),
            Self::Forbidden(_) => (403, "Forbidden"),
            Self::Internal(_) => (500, "InternalError"),
        };
        let details = match self {
            Self::Invalid {
                group,
                kind,
                name,
                violations,
            } => Some(StatusDetails {
                group: Some((*group).to_owned()),
                kind: Some(kind.clone()),
                name: Some(name.clone()),
                causes: Some(violations.iter().map(cause).collect()),
                ..StatusDetails::default()
            }),
            Self::Unreadable(_) | Self::Incomplete(_) | Self::Forbidden(_) | Self::Internal(_) => None,
        };
        Status {
            status: Some("Failure".to_owned()),
            code: Some(code),
            reason: Some(reason.to_owned()),
            message: Some(self.to_string()),
            details,
            ..Status::default()
        }
    }
}

fn cause(violation: &Violation) -> StatusCause {
    let reason = match violation.kind {
        Kind::Invalid => "FieldValueInvalid",
        Kind::Required => "FieldValueRequired",
        Kind::TooLong => "FieldValueTooLong",
        Kind::Forbidden => "FieldValueForbidden",
        Kind::Internal => "InternalError",
    };
    StatusCause {
        field: Some(violation.field.clone()),
        message: Some(violation.sentence()),
        reason: Some(reason.to_owned()),
    }
}

/// The message for these violations. Several are in brackets, without duplicates.
fn invalid(resource: &str, name: &str, violations: &[Violation]) -> String {
    let mut sentences: Vec<String> = Vec::new();
    for violation in violations {
        let sentence = violation.to_string();
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    let mut message = format!("{resource} {name:?} is invalid");
    // Writing to a String cannot fail.
    let _ = match sentences.as_slice() {
        [] => Ok(()),
        [sentence] => write!(message, ": {sentence}"),
        sentences => write!(message, ": [{}]", sentences.join(", ")),
    };
    message
}
