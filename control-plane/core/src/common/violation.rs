//! Validation errors, worded as by the API server.

use std::fmt;

use lockstep_api::beginning;
use serde::Serialize;

/// The kind of a violation, as the API server distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value is invalid.
    Invalid,
    /// The value is missing.
    Required,
    /// The value is too long.
    TooLong,
    /// The value is not allowed at this time.
    Forbidden,
    /// Fields contradict each other. Upstream calls that an internal error, since it names no
    /// field.
    Internal,
}

/// One fault of a JobSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kind of the violation.
    pub kind: Kind,
    /// Path of the field, such as `spec.replicatedJobs[0].groupName`.
    pub field: String,
    /// The refused value as shown to users, if a single field has it.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// True if a JobSet that bypassed the webhooks runs anyway, as with upstream's controller,
    /// which checks nothing.
    pub is_harmless: bool,
}

impl Violation {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Invalid,
            field: field.into(),
            value: None,
            message: message.into(),
            is_harmless: false,
        }
    }

    /// A violation that upstream reports without a field.
    #[must_use]
    pub fn internal(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(field, message).of(Kind::Internal)
    }

    pub(crate) fn of(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same violation, marked as harmless.
    pub(crate) fn harmless(self) -> Self {
        self.harmless_if(true)
    }

    /// The same violation, marked as harmless if `is_harmless`.
    pub(crate) fn harmless_if(self, is_harmless: bool) -> Self {
        Self { is_harmless, ..self }
    }

    /// What is wrong, without the field, as the API server words it.
    #[must_use]
    pub fn sentence(&self) -> String {
        match (&self.value, self.kind) {
            (Some(value), _) => format!("Invalid value: {value}: {}", self.message),
            (None, Kind::Forbidden) => format!("Forbidden: {}", self.message),
            (None, Kind::Invalid | Kind::Required | Kind::TooLong | Kind::Internal) => self.message.clone(),
        }
    }

    /// A violation that shows a value, truncated if it is long, since every violation may show the
    /// same.
    pub(crate) fn with_value(
        field: impl Into<String>,
        value: impl fmt::Debug,
        message: impl Into<String>,
    ) -> Self {
        const LONGEST: usize = 4096;
        Self {
            value: Some(beginning(&format!("{value:?}"), LONGEST)),
            ..Self::new(field, message)
        }
    }

    /// A violation that shows a list or an object.
    pub(crate) fn with_json(
        field: impl Into<String>,
        value: &impl Serialize,
        message: impl Into<String>,
    ) -> Self {
        let shown = serde_json::to_string(value).unwrap_or_default();
        Self::with_value(field, format_args!("{shown}"), message)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.sentence())
    }
}

/// The path of a field of a replicatedJob.
pub(crate) fn path(index: usize, below: &str) -> String {
    format!("spec.replicatedJobs[{index}]{below}")
}
