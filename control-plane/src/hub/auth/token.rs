//! The claims of a ServiceAccount token (RFC 7519; KEP-4193 for the node that it is bound to).

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde::Deserialize;

use super::AuthError;
use super::keys::Issuer;

/// Longest token that is read, in bytes. Tokens of Kubernetes have 1 to 2 KiB.
const LONGEST: usize = 8 * 1024;
/// How far clocks may differ, in seconds.
pub(super) const LEEWAY: u64 = 30;

/// Which tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Their audience.
    pub audience: String,
    /// Their user, `system:serviceaccount:<namespace>:<name>`.
    pub subject: String,
}

impl Expected {
    /// Tokens of a ServiceAccount for an audience.
    #[must_use]
    pub fn new(audience: &str, namespace: &str, account: &str) -> Self {
        Self {
            audience: audience.to_owned(),
            subject: format!("system:serviceaccount:{namespace}:{account}"),
        }
    }
}

/// The claims of an accepted token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) node: String,
    /// Seconds since the Unix epoch.
    pub(super) expires: u64,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    #[serde(rename = "kubernetes.io", default)]
    kubernetes: Kubernetes,
}

#[derive(Default, Deserialize)]
struct Kubernetes {
    node: Option<Node>,
}

#[derive(Deserialize)]
struct Node {
    name: String,
}

/// The id of the key in a token's header.
pub(super) fn key_id(token: &str) -> Result<String, AuthError> {
    if token.len() > LONGEST {
        return Err(AuthError::TooLong);
    }
    let header = decode_header(token).map_err(|_| AuthError::Malformed)?;
    if ![Algorithm::RS256, Algorithm::ES256, Algorithm::ES384].contains(&header.alg) {
        return Err(AuthError::Algorithm);
    }
    header.kid.ok_or(AuthError::Malformed)
}

/// Checks a token against the issuer's key with this id.
pub(super) fn check(
    token: &str,
    key_id: &str,
    issuer: &Issuer,
    expected: &Expected,
) -> Result<Accepted, AuthError> {
    let key = issuer.key(key_id).ok_or(AuthError::UnknownKey)?;
    // The key decides the algorithm, and not the token.
    let mut wanted = Validation::new(key.algorithm);
    wanted.leeway = LEEWAY;
    wanted.validate_nbf = true;
    wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    wanted.set_issuer(&[&issuer.name]);
    wanted.set_audience(&[&expected.audience]);
    let claims = decode::<Claims>(token, &key.key, &wanted)
        .map_err(|error| refusal(error.kind(), issuer, expected))?
        .claims;
    if claims.sub != expected.subject {
        return Err(AuthError::Subject {
            subject: claims.sub,
            expected: expected.subject.clone(),
        });
    }
    let node = claims.kubernetes.node.map(|node| node.name);
    Ok(Accepted {
        node: node.filter(|node| !node.is_empty()).ok_or(AuthError::NoNode)?,
        expires: claims.exp,
    })
}

fn refusal(error: &ErrorKind, issuer: &Issuer, expected: &Expected) -> AuthError {
    let claim = match error {
        ErrorKind::MissingRequiredClaim(claim) => claim.as_str(),
        _ => "",
    };
    match (error, claim) {
        (ErrorKind::InvalidSignature, _) => AuthError::Signature,
        (ErrorKind::InvalidAlgorithm, _) => AuthError::Algorithm,
        (ErrorKind::ExpiredSignature, _) => AuthError::Expired,
        (ErrorKind::ImmatureSignature, _) => AuthError::NotYetValid,
        (ErrorKind::InvalidIssuer, _) | (_, "iss") => AuthError::Issuer {
            expected: issuer.name.clone(),
        },
        (ErrorKind::InvalidAudience, _) | (_, "aud") => AuthError::Audience {
            expected: expected.audience.clone(),
        },
        _ => AuthError::Malformed,
    }
}
