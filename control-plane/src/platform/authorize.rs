//! Who may see groups, and who may restart them. Behind a trait, so that the service does not depend on how that is known.

use async_trait::async_trait;
use thiserror::Error;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::refused::{Reason, Refused};
use crate::serve::{Access, Verdict, Wish};

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
    /// The API server could not be asked.
    #[error("the API server could not be asked who the caller is")]
    Unavailable,
}

impl Refusal {
    /// What the caller is told, who asked to `verb` the JobSet `name` (empty: all) in `namespace` (empty: all).
    pub(super) fn status(&self, verb: &str, namespace: &str, name: &str) -> Status {
        let refused = |reason| Refused::new(reason, self.to_string()).of(namespace, name);
        match self {
            Self::Missing => refused(Reason::TokenMissing),
            Self::Unknown => refused(Reason::TokenUnknown),
            Self::Denied { user, .. } => refused(Reason::AccessDenied)
                .with("user", user)
                .with("verb", verb),
            Self::Unavailable => refused(Reason::ApiServerUnavailable),
        }
        .into()
    }
}

/// Says whether a request may be served.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Whether the sender of these metadata may `verb` the JobSet `name` (empty: all) in `namespace` (empty: all).
    ///
    /// # Errors
    /// [`Refusal`] where the request must not be served.
    async fn authorize(
        &self,
        metadata: &MetadataMap,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal>;
}

/// The API server knows who the bearer of a token is, and what its RBAC rules let them do.
pub struct ClusterAuthorizer {
    access: Access,
}

impl ClusterAuthorizer {
    /// One that asks through this client.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self {
            access: Access::new(client),
        }
    }
}

#[async_trait]
impl Authorizer for ClusterAuthorizer {
    async fn authorize(
        &self,
        metadata: &MetadataMap,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        let token = metadata
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .and_then(bearer)
            .ok_or(Refusal::Missing)?;
        let wish = Wish::JobSets {
            verb,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        match self.access.check(token, &wish).await {
            Ok(Verdict::Allowed) => Ok(()),
            Ok(Verdict::Unknown) => Err(Refusal::Unknown),
            Ok(Verdict::Denied(user)) => Err(Refusal::Denied {
                user,
                verb,
                place: place(namespace, name),
            }),
            Err(error) => {
                tracing::warn!(%error, "a caller of the platform API could not be checked");
                Err(Refusal::Unavailable)
            }
        }
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

pub(super) fn place(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        ("", _) => " in all namespaces".to_owned(),
        (namespace, "") => format!(" in namespace {namespace}"),
        (namespace, name) => format!(" {name} in namespace {namespace}"),
    }
}
