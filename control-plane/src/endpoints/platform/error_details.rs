//! Errors of calls: a status code and a message for people, with `google.rpc` details for programs.
//!
//! Promises: every error of this server has an `ErrorInfo` of the domain `lockstep.dev`. Its reason
//! is listed in platform.proto; its metadata name the object, as far as the caller named it. A
//! `BadRequest` names the invalid field. A `RetryInfo` says when the same call may succeed. A
//! `PreconditionFailure` says what prevents the call. All of this fits into the headers that gRPC
//! clients read.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::controllers::restart::board::Key;

/// The domain of every reason.
pub(super) const DOMAIN: &str = "lockstep.dev";
/// The resource of all preconditions.
const RESOURCE: &str = "jobsets.jobset.x-k8s.io";
/// Longest message, in bytes. A status holds it up to three times, two of them in base64, and
/// clients read 8 KiB of headers.
const LONGEST: usize = 1024;
/// Retry delay if another replica leads, or this one will in a moment.
const SOON: Duration = Duration::from_millis(200);
/// Retry delay if other calls have to end first.
const LATER: Duration = Duration::from_secs(1);
/// Retry delay if another client has to disconnect first.
const MUCH_LATER: Duration = Duration::from_secs(10);

/// The reason for programs: `ErrorInfo.reason`, as listed in platform.proto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    TokenMissing,
    TokenUnknown,
    AccessDenied,
    InvalidField,
    JobsetNotFound,
    WorkersNotFound,
    ServiceNotFound,
    JobsetEnded,
    NotInPlace,
    NotWorkerScope,
    TooManyWorkers,
    AdmissionRefused,
    JobsetChanged,
    RequestPending,
    NotLeading,
    TakingOver,
    ShuttingDown,
    ApiServerUnavailable,
    TooManyWatches,
    TooManyStreams,
    TooManyDryRuns,
    TooManyCallers,
}

impl Reason {
    #[cfg(test)]
    pub(super) const ALL: [Self; 22] = [
        Self::TokenMissing,
        Self::TokenUnknown,
        Self::AccessDenied,
        Self::InvalidField,
        Self::JobsetNotFound,
        Self::WorkersNotFound,
        Self::ServiceNotFound,
        Self::JobsetEnded,
        Self::NotInPlace,
        Self::NotWorkerScope,
        Self::TooManyWorkers,
        Self::AdmissionRefused,
        Self::JobsetChanged,
        Self::RequestPending,
        Self::NotLeading,
        Self::TakingOver,
        Self::ShuttingDown,
        Self::ApiServerUnavailable,
        Self::TooManyWatches,
        Self::TooManyStreams,
        Self::TooManyDryRuns,
        Self::TooManyCallers,
    ];

    /// The spelling in the details.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TokenMissing => "TOKEN_MISSING",
            Self::TokenUnknown => "TOKEN_UNKNOWN",
            Self::AccessDenied => "ACCESS_DENIED",
            Self::InvalidField => "INVALID_FIELD",
            Self::JobsetNotFound => "JOBSET_NOT_FOUND",
            Self::WorkersNotFound => "WORKERS_NOT_FOUND",
            Self::ServiceNotFound => "SERVICE_NOT_FOUND",
            Self::JobsetEnded => "JOBSET_ENDED",
            Self::NotInPlace => "NOT_IN_PLACE",
            Self::NotWorkerScope => "NOT_WORKER_SCOPE",
            Self::TooManyWorkers => "TOO_MANY_WORKERS",
            Self::AdmissionRefused => "ADMISSION_REFUSED",
            Self::JobsetChanged => "JOBSET_CHANGED",
            Self::RequestPending => "REQUEST_PENDING",
            Self::NotLeading => "NOT_LEADING",
            Self::TakingOver => "TAKING_OVER",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::ApiServerUnavailable => "API_SERVER_UNAVAILABLE",
            Self::TooManyWatches => "TOO_MANY_WATCHES",
            Self::TooManyStreams => "TOO_MANY_STREAMS",
            Self::TooManyDryRuns => "TOO_MANY_DRY_RUNS",
            Self::TooManyCallers => "TOO_MANY_CALLERS",
        }
    }

    pub(super) fn code(self) -> Code {
        match self {
            Self::TokenMissing | Self::TokenUnknown => Code::Unauthenticated,
            Self::AccessDenied => Code::PermissionDenied,
            Self::InvalidField => Code::InvalidArgument,
            Self::JobsetNotFound | Self::WorkersNotFound | Self::ServiceNotFound => Code::NotFound,
            Self::JobsetEnded
            | Self::NotInPlace
            | Self::NotWorkerScope
            | Self::TooManyWorkers
            | Self::AdmissionRefused => Code::FailedPrecondition,
            Self::JobsetChanged | Self::RequestPending => Code::Aborted,
            Self::NotLeading | Self::TakingOver | Self::ShuttingDown | Self::ApiServerUnavailable => {
                Code::Unavailable
            }
            Self::TooManyWatches | Self::TooManyStreams | Self::TooManyDryRuns | Self::TooManyCallers => {
                Code::ResourceExhausted
            }
        }
    }

    /// When to repeat the same call, if only time has to pass.
    pub(super) fn again_after(self) -> Option<Duration> {
        match self {
            Self::NotLeading | Self::TakingOver | Self::ShuttingDown => Some(SOON),
            Self::ApiServerUnavailable
            | Self::RequestPending
            | Self::TooManyDryRuns
            | Self::TooManyCallers => Some(LATER),
            Self::TooManyWatches | Self::TooManyStreams => Some(MUCH_LATER),
            _ => None,
        }
    }
}

/// An error of a call.
#[derive(Debug)]
pub(super) struct CallError {
    reason: Reason,
    message: String,
    metadata: HashMap<String, String>,
}

impl CallError {
    /// An error with this message for people.
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: HashMap::new(),
        }
    }

    /// An invalid argument. The message begins with its field.
    pub(super) fn field(path: &str, why: &str) -> Self {
        Self::new(Reason::InvalidField, format!("{path}: {why}")).with("field", path)
    }

    /// The same, about this JobSet (empty: all) in this namespace (empty: all).
    pub(super) fn of(self, namespace: &str, name: &str) -> Self {
        self.with("namespace", namespace).with("jobset", name)
    }

    /// The same, about the JobSet with this key.
    pub(super) fn of_key(self, key: &Key) -> Self {
        self.of(&key.namespace, &key.name)
    }

    /// The same, with one more entry of metadata, unless it is empty.
    pub(super) fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.metadata.insert(key.to_owned(), value);
        }
        self
    }

    fn get(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }
}

impl From<CallError> for Status {
    fn from(mut refused: CallError) -> Self {
        let reason = refused.reason;
        let message = &mut refused.message;
        message.truncate(message.floor_char_boundary(LONGEST));
        let message = refused.message.clone();
        let mut details = ErrorDetails::new();
        match reason.code() {
            Code::InvalidArgument => {
                let field = refused.get("field");
                let why = message.strip_prefix(&format!("{field}: ")).unwrap_or(&message);
                details.add_bad_request_violation(field, why);
            }
            Code::FailedPrecondition => {
                let subject = format!(
                    "{RESOURCE}/{}/{}",
                    refused.get("namespace"),
                    refused.get("jobset")
                );
                details.add_precondition_failure_violation(reason.name(), subject, &message);
            }
            _ => {}
        }
        if let Some(delay) = reason.again_after() {
            details.set_retry_info(Some(delay));
        }
        details.set_error_info(reason.name(), DOMAIN, refused.metadata);
        Self::with_error_details(reason.code(), message, details)
    }
}

#[cfg(test)]
mod tests;
