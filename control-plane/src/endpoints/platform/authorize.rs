//! Who may see groups, and who may restart them. A trait keeps the service independent of how
//! callers are checked.

use async_trait::async_trait;
use thiserror::Error;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::error_details::{CallError, Reason};
use crate::net::tls::ConnectionHandle;

/// Why a request is not served.
#[derive(Debug, Error)]
pub enum Refusal {
    /// No `authorization: Bearer …`.
    #[error("the request carries no bearer token")]
    Missing,
    /// The API server does not know the token.
    #[error("the bearer token is not accepted")]
    Unknown,
    /// The user has no permission.
    #[error("user {user} may not {verb} jobsets.jobset.x-k8s.io{location}")]
    Denied {
        /// The user.
        user: String,
        /// The verb that was checked.
        verb: &'static str,
        /// The name and the namespace, in words.
        location: String,
    },
    /// Too many calls from its address already wait for the API server.
    #[error("too many calls from this address wait to be checked")]
    TooMany,
    /// The API server could not check the caller.
    #[error("the API server could not check who the caller is")]
    Unavailable(#[source] Box<kube::Error>),
}

impl Refusal {
    /// The answer to a caller that asked to `verb` the JobSet `name` (empty: all) in `namespace`
    /// (empty: all).
    pub(super) fn status(&self, verb: &str, namespace: &str, name: &str) -> Status {
        let refused = |reason| CallError::new(reason, self.to_string()).of(namespace, name);
        match self {
            Self::Missing => refused(Reason::TokenMissing),
            Self::Unknown => refused(Reason::TokenUnknown),
            Self::Denied { user, .. } => refused(Reason::AccessDenied)
                .with("user", user)
                .with("verb", verb),
            Self::TooMany => refused(Reason::TooManyCallers),
            Self::Unavailable(_) => refused(Reason::ApiServerUnavailable),
        }
        .into()
    }
}

/// The sender of a request, before it is checked.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The metadata of the request.
    pub metadata: MetadataMap,
    /// The address by which clients are told apart.
    pub address: String,
}

impl Caller {
    /// The caller of a request, and its message.
    pub(super) fn of<T>(request: Request<T>) -> (Self, T) {
        let (metadata, extensions, message) = request.into_parts();
        let address = extensions
            .get::<ConnectionHandle>()
            .map(ConnectionHandle::address)
            .unwrap_or_default();
        (Self { metadata, address }, message)
    }
}

/// Decides if a request may be served.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Checks that this caller may `verb` the JobSet `name` (empty: all) in `namespace` (empty:
    /// all).
    ///
    /// # Errors
    /// [`Refusal`] if the request must not be served.
    async fn authorize(
        &self,
        caller: &Caller,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal>;

    /// Notes that the service has refused this caller.
    fn refused(&self, caller: &Caller, refusal: &Refusal);
}

/// Where JobSets are, in words, for messages.
pub(super) fn location(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        ("", _) => " in all namespaces".to_owned(),
        (namespace, "") => format!(" in namespace {namespace}"),
        (namespace, name) => format!(" {name} in namespace {namespace}"),
    }
}
