//! Authentication of node daemons by projected ServiceAccount tokens.
//!
//! Promises: tokens are verified locally, with the keys that the cluster publishes ([`Keys`]), so
//! no stream waits for the API server. The node's name comes only from the token. Separately, and
//! at a limited rate, [`Reviews`] asks the API server which tokens were revoked.

mod keys;
mod review;
mod signature;
mod token;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataMap;

use keys::Keys;
pub use keys::{ClusterKeys, Issuer, KeyError, KeySource};
pub use review::{ClusterReviewer, ReviewError, Reviewer};
use review::{Reviews, Watched};
pub use token::Expected;

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

/// How long a stream continues after its token has expired, without a new one. The kubelet may be
/// late, or may not reach the API server.
pub(super) const GRACE: Duration = Duration::from_secs(300);

/// Why credentials were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AuthError {
    /// No `authorization: Bearer …` in the request.
    #[error("the request carries no bearer token")]
    Missing,
    /// Longer than any real token.
    #[error("the token is too long")]
    TooLong,
    /// Not a ServiceAccount token.
    #[error("the token is not a ServiceAccount token")]
    Malformed,
    /// Not an algorithm of API servers, or not the one of the key.
    #[error("the token's algorithm is not accepted")]
    Algorithm,
    /// The cluster has no such key.
    #[error("the token is signed with a key that the cluster does not publish")]
    UnknownKey,
    /// Signed by another key.
    #[error("the token's signature is invalid")]
    Signature,
    /// From another issuer.
    #[error("the token is not issued by {expected}")]
    Issuer {
        /// The only issuer that is accepted.
        expected: String,
    },
    /// For another audience.
    #[error("the token is not for the audience {expected}")]
    Audience {
        /// The only audience that is accepted.
        expected: String,
    },
    /// Past its expiry.
    #[error("the token has expired")]
    Expired,
    /// Before its beginning.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// From another ServiceAccount.
    #[error("the token belongs to {subject}, and only {expected} is accepted")]
    Subject {
        /// The user of the token.
        subject: String,
        /// The only user that is accepted.
        expected: String,
    },
    /// Without the node of its pod.
    #[error(
        "the token names no node: Kubernetes 1.32 or later is needed, or the feature gate ServiceAccountTokenPodNodeInfo"
    )]
    NoNode,
    /// Its pod, node or ServiceAccount is gone.
    #[error("the token was revoked: its pod, node or ServiceAccount is gone")]
    Revoked,
    /// A stream belongs to one node.
    #[error("the token belongs to node {node}, and the stream to another one")]
    OtherNode {
        /// The node of the token.
        node: String,
    },
    /// The stream's token has expired, and the daemon has sent no new one.
    #[error("the stream's token has expired, and no new one has come")]
    Overdue,
    /// No key is known, or not this one, and the API server cannot be reached.
    #[error("the keys that sign tokens cannot be read from the API server")]
    NoKeys,
}

impl AuthError {
    /// Its name in metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "no_token",
            Self::TooLong => "token_too_long",
            Self::Malformed => "malformed_token",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Issuer { .. } => "issuer",
            Self::Audience { .. } => "audience",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Subject { .. } => "subject",
            Self::NoNode => "no_node",
            Self::Revoked => "revoked",
            Self::OtherNode { .. } => "other_node",
            Self::Overdue => "overdue",
            Self::NoKeys => "no_keys",
        }
    }
}

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        let text = error.to_string();
        match error {
            AuthError::NoKeys => Self::unavailable(text),
            _ => Self::unauthenticated(text),
        }
    }
}

/// An accepted token.
pub struct Credentials {
    /// Name of the Node object. All reports of the stream are checked against the pods that are
    /// bound to this node.
    pub node: String,
    /// When the token expires.
    expires: Instant,
    watched: Watched,
}

impl Credentials {
    /// When the token expires.
    pub(super) fn expires(&self) -> Instant {
        self.expires
    }

    /// Resolves once the token is known to be revoked. Cancel-safe.
    pub(super) fn revoked(&self) -> impl Future<Output = ()> + Send + 'static {
        self.watched.revoked()
    }
}

/// Turns tokens into nodes' identities.
pub struct Authenticator {
    expected: Expected,
    keys: Keys,
    reviews: Arc<Reviews>,
}

impl Authenticator {
    /// An authenticator for such tokens. It works once [`Authenticator::keep`] runs.
    #[must_use]
    pub fn new(expected: Expected, keys: impl KeySource, reviewer: impl Reviewer) -> Arc<Self> {
        signature::install();
        Arc::new(Self {
            expected,
            keys: Keys::new(keys),
            reviews: Reviews::new(reviewer),
        })
    }

    /// Keeps the keys up to date and checks for revoked tokens, until `end`.
    pub async fn keep(&self, end: CancellationToken) {
        tokio::join!(self.keys.keep(end.clone()), self.reviews.run(end));
    }

    /// Checks the request's metadata.
    ///
    /// # Errors
    /// [`AuthError`] if the request must not be served.
    pub async fn authenticate(&self, metadata: &MetadataMap) -> Result<Credentials, AuthError> {
        let value = metadata.get("authorization");
        let token = value
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
            .ok_or(AuthError::Missing)?;
        self.check(token).await
    }

    /// Checks a token.
    ///
    /// # Errors
    /// [`AuthError`] if it is not accepted.
    pub async fn check(&self, token: &str) -> Result<Credentials, AuthError> {
        let id = token::key_id(token)?;
        let issuer = self.keys.with(&id).await?;
        let accepted = token::check(token, &id, &issuer, &self.expected)?;
        let expires = at(accepted.expires);
        Ok(Credentials {
            node: accepted.node,
            expires,
            watched: self.reviews.watch(token, expires).ok_or(AuthError::Revoked)?,
        })
    }
}

/// Converts seconds since the Unix epoch to the monotonic clock. A time in the past becomes now; a
/// time far in the future becomes a year from now.
fn at(seconds: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_secs(seconds).saturating_sub(now);
    Instant::now() + left.min(Duration::from_secs(366 * 24 * 3600))
}
