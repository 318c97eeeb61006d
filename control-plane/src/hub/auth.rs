//! Who is speaking. Behind a trait, so that projected ServiceAccount tokens can replace the static token without touching the hub.

use std::path::Path;

use anyhow::Context as _;
use async_trait::async_trait;
use subtle::ConstantTimeEq;
use thiserror::Error;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// The node that a stream belongs to. Everything that it reports is held against the pods bound to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Name of the Node object.
    pub node: String,
}

/// Why credentials were refused.
#[derive(Debug, Error)]
pub enum AuthError {
    /// No `authorization: Bearer …` in the request.
    #[error("the request carries no bearer token")]
    Missing,
    /// The token is not valid.
    #[error("the bearer token is not accepted")]
    Refused,
    /// The token does not name a node and the request does not either.
    #[error("the request names no node (metadata `lockstep-node`)")]
    NoNode,
}

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        Self::unauthenticated(error.to_string())
    }
}

/// Turns the credentials of a request into a node's identity.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Checks the request's metadata.
    ///
    /// # Errors
    /// [`AuthError`] where the request must not be served.
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<NodeIdentity, AuthError>;
}

/// One shared token for all daemons. The node's name is taken from the request, so that whoever holds the token may speak for any node.
pub struct StaticToken {
    token: String,
}

impl StaticToken {
    /// Accepts exactly this token.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into() }
    }

    /// Accepts the token that a file holds, but for white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let token =
            std::fs::read_to_string(file).with_context(|| format!("--hub-token-file {}", file.display()))?;
        let token = token.trim();
        anyhow::ensure!(!token.is_empty(), "--hub-token-file {} is empty", file.display());
        Ok(Self::new(token))
    }
}

#[async_trait]
impl Authenticator for StaticToken {
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<NodeIdentity, AuthError> {
        let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok());
        let token = text("authorization")
            .and_then(|value| value.strip_prefix("Bearer "))
            .ok_or(AuthError::Missing)?;
        if !bool::from(token.as_bytes().ct_eq(self.token.as_bytes())) {
            return Err(AuthError::Refused);
        }
        let node = text("lockstep-node")
            .filter(|node| !node.is_empty())
            .ok_or(AuthError::NoNode)?;
        Ok(NodeIdentity {
            node: node.to_owned(),
        })
    }
}
