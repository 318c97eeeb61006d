//! Who may see groups, and who may restart them. Behind a trait, so that the service does not
//! depend on how that is known.

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
    /// Nobody has this token.
    #[error("the bearer token is not accepted")]
    Unknown,
    /// Somebody else may, this user may not.
    #[error("user {user} may not {verb} jobsets.jobset.x-k8s.io{place}")]
    Denied {
        /// Who.
        user: String,
        /// What.
        verb: &'static str,
        /// Of which name and in which namespace, in words.
        place: String,
    },
    /// Others of its address wait already for what the API server says.
    #[error("too many calls from this address wait to be checked")]
    TooMany,
    /// The API server could not be asked.
    #[error("the API server could not be asked who the caller is")]
    Unavailable(#[source] Box<kube::Error>),
}

impl Refusal {
    /// What the caller is told, who asked to `verb` the JobSet `name` (empty: all) in `namespace`
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

/// Who sends a request, as far as that is known before anybody was asked.
#[derive(Debug, Clone)]
pub struct Caller {
    /// What the request carries beside its message.
    pub metadata: MetadataMap,
    /// Where it comes from, as far as clients are told apart by that.
    pub address: String,
}

impl Caller {
    /// That of a request, and its message.
    pub(super) fn of<T>(request: Request<T>) -> (Self, T) {
        let (metadata, extensions, message) = request.into_parts();
        let address = extensions
            .get::<ConnectionHandle>()
            .map(ConnectionHandle::address)
            .unwrap_or_default();
        (Self { metadata, address }, message)
    }
}

/// Says whether a request may be served.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Checks that this caller may `verb` the JobSet `name` (empty: all) in `namespace` (empty:
    /// all).
    ///
    /// # Errors
    /// [`Refusal`] where the request must not be served.
    async fn authorize(
        &self,
        caller: &Caller,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal>;

    /// This caller is refused for that, as the service has decided.
    fn refused(&self, caller: &Caller, refusal: &Refusal);
}

pub(super) fn place(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        ("", _) => " in all namespaces".to_owned(),
        (namespace, "") => format!(" in namespace {namespace}"),
        (namespace, name) => format!(" {name} in namespace {namespace}"),
    }
}
