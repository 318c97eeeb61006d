//! The keys that the cluster signs ServiceAccount tokens with, as its API server publishes them.
//!
//! Promises: tokens are checked with cached keys, so a storm of reconnects causes no requests to
//! the API server. Keys are read again every ten minutes, and for a token with an unknown key, but
//! at most every five seconds. While the API server is away, the last keys stay in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey};
use kube::Client;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::AuthError;

/// Where an API server publishes the issuer of its tokens (OpenID Connect Discovery 1.0, 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";
/// Where it publishes the keys (RFC 7517).
const JWKS: &str = "/openid/v1/jwks";

/// Time after which keys are read again.
const REFRESH: Duration = Duration::from_secs(600);
/// Least time between two reads.
const SPACING: Duration = Duration::from_secs(5);
/// How long one read may take.
const READING: Duration = Duration::from_secs(10);
/// How long a token waits for keys to be read.
const KEY_TIMEOUT: Duration = Duration::from_secs(4);

/// Why the keys are not known.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The API server refuses, or does not answer.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// It does not answer in time.
    #[error("no answer within {} s", READING.as_secs())]
    Late,
    /// Its answer cannot be read.
    #[error("{what}: {error}")]
    Malformed {
        /// The path of the answer.
        what: &'static str,
        /// The error of the parser.
        error: serde_json::Error,
    },
}

/// A source of keys.
#[async_trait]
pub trait KeySource: Send + Sync + 'static {
    /// Reads the keys.
    ///
    /// # Errors
    /// [`KeyError`] if they cannot be read now.
    async fn read(&self) -> Result<Issuer, KeyError>;
}

/// The API server of the cluster.
pub struct ClusterKeys(pub Client);

#[async_trait]
impl KeySource for ClusterKeys {
    async fn read(&self) -> Result<Issuer, KeyError> {
        let get = async |path: &str| {
            let request = http::Request::get(path).body(Vec::new());
            let request = request.map_err(kube::Error::HttpError).map_err(Box::new)?;
            Ok::<_, KeyError>(self.0.request_text(request).await.map_err(Box::new)?)
        };
        Issuer::parse(&get(DISCOVERY).await?, &get(JWKS).await?)
    }
}

/// An issuer of tokens, with its keys.
#[derive(Debug)]
pub struct Issuer {
    /// The value of the claim `iss`.
    pub(super) name: String,
    /// By key id.
    keys: HashMap<String, Key>,
}

/// A key that verifies the signatures of one algorithm.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

impl Issuer {
    /// Reads a discovery document and a set of keys. Keys of an unknown kind are left out.
    ///
    /// # Errors
    /// [`KeyError::Malformed`].
    pub fn parse(discovery: &str, jwks: &str) -> Result<Self, KeyError> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
        }
        let malformed = |what| move |error| KeyError::Malformed { what, error };
        let discovery: Discovery = serde_json::from_str(discovery).map_err(malformed(DISCOVERY))?;
        let set: JwkSet = serde_json::from_str(jwks).map_err(malformed(JWKS))?;
        Ok(Self {
            name: discovery.issuer,
            keys: set.keys.iter().filter_map(key).collect(),
        })
    }

    pub(super) fn key(&self, id: &str) -> Option<&Key> {
        self.keys.get(id)
    }
}

fn key(jwk: &Jwk) -> Option<(String, Key)> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(params) => match params.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            _ => return None,
        },
        _ => return None,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some((jwk.common.key_id.clone()?, Key { algorithm, key }))
}

/// The keys, kept up to date by [`Keys::keep`].
pub(super) struct Keys {
    source: Box<dyn KeySource>,
    known: watch::Sender<KnownKeys>,
    wanted: Notify,
}

#[derive(Default)]
struct KnownKeys {
    issuer: Option<Arc<Issuer>>,
    /// When the last read ended, and if it succeeded.
    last: Option<(Instant, bool)>,
}

impl Keys {
    /// An empty cache for keys of this source.
    pub(super) fn new(source: impl KeySource) -> Self {
        Self {
            source: Box::new(source),
            known: watch::Sender::default(),
            wanted: Notify::new(),
        }
    }

    /// The issuer, once it has this key.
    pub(super) async fn with(&self, id: &str) -> Result<Arc<Issuer>, AuthError> {
        let mut reads = self.known.subscribe();
        if let Some(settled) = look_up(&reads.borrow_and_update(), id, SPACING) {
            return settled;
        }
        self.wanted.notify_one();
        let read = timeout(KEY_TIMEOUT, reads.changed()).await;
        let settled = match read {
            Ok(Ok(())) => look_up(&reads.borrow(), id, Duration::MAX),
            _ => None,
        };
        settled.unwrap_or(Err(AuthError::NoKeys))
    }

    /// Reads the keys, and reads them again as promised, until `end`.
    pub(super) async fn keep(&self, end: CancellationToken) {
        while end.run_until_cancelled(self.keep_once()).await.is_some() {}
    }

    async fn keep_once(&self) {
        let read = timeout(READING, self.source.read()).await;
        let read = read.unwrap_or(Err(KeyError::Late));
        let now = Instant::now();
        let next = now + if read.is_ok() { REFRESH } else { SPACING };
        self.known.send_modify(|known| {
            let worked = known.last.is_none_or(|(_, worked)| worked);
            match &read {
                Ok(issuer) if known.issuer.is_none() || !worked => {
                    tracing::info!(
                        issuer = issuer.name,
                        keys = issuer.keys.len(),
                        "read the cluster's keys"
                    );
                }
                Err(error) if worked => {
                    tracing::warn!(%error, "failed to read the keys of ServiceAccount tokens, will retry");
                }
                _ => {}
            }
            known.last = Some((now, read.is_ok()));
            if let Ok(issuer) = read {
                known.issuer = Some(Arc::new(issuer));
            }
        });
        tokio::select! {
            () = sleep_until(next) => {}
            () = self.wanted.notified() => sleep_until(now + SPACING).await,
        }
    }
}

/// What is known about a key; `None` if that takes a read, since the last one is older than
/// `fresh`.
fn look_up(known: &KnownKeys, id: &str, fresh: Duration) -> Option<Result<Arc<Issuer>, AuthError>> {
    if let Some(issuer) = &known.issuer
        && issuer.key(id).is_some()
    {
        return Some(Ok(Arc::clone(issuer)));
    }
    let (_, worked) = known.last.filter(|(at, _)| at.elapsed() < fresh)?;
    Some(Err(if worked {
        AuthError::UnknownKey
    } else {
        AuthError::NoKeys
    }))
}
