//! An issuer of tokens like an API server. The test controls its keys and revocations.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::get_current_timestamp;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::{Authenticator, Expected, Issuer, KeyError, KeySource, ReviewError, Reviewer};

pub(in crate::hub) const ISSUER: &str = "https://kubernetes.default.svc";
pub(in crate::hub) const AUDIENCE: &str = "lockstep-hub";

/// The test's API server. Clones are the same one.
#[derive(Clone)]
pub(in crate::hub) struct Cluster(Arc<Inner>);

struct Inner {
    /// The published keys. The last one signs.
    keys: Mutex<Vec<(String, EcdsaKeyPair)>>,
    away: AtomicBool,
    readings: AtomicUsize,
    questions: AtomicUsize,
    revoked: Mutex<BTreeSet<String>>,
}

impl Cluster {
    pub(in crate::hub) fn new() -> Self {
        let cluster = Self(Arc::new(Inner {
            keys: Mutex::default(),
            away: AtomicBool::default(),
            readings: AtomicUsize::default(),
            questions: AtomicUsize::default(),
            revoked: Mutex::default(),
        }));
        cluster.add_key("first");
        cluster
    }

    /// An authenticator for its tokens.
    pub(in crate::hub) fn authenticator(&self) -> Arc<Authenticator> {
        let expected = Expected::new(AUDIENCE, "lockstep-system", "lockstep-node-daemon");
        Authenticator::new(expected, self.clone(), self.clone())
    }

    /// Signs with another key from now on.
    pub(in crate::hub) fn add_key(&self, id: &str) {
        let rng = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &rng).unwrap();
        self.0.keys.lock().unwrap().push((id.to_owned(), key));
    }

    /// Makes it unreachable, or reachable again.
    pub(in crate::hub) fn go_away(&self, away: bool) {
        self.0.away.store(away, Ordering::SeqCst);
    }

    pub(in crate::hub) fn revoke(&self, token: &str) {
        self.0.revoked.lock().unwrap().insert(token.to_owned());
    }

    /// How often keys were read, and tokens reviewed.
    pub(in crate::hub) fn asked(&self) -> (usize, usize) {
        let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
        (count(&self.0.readings), count(&self.0.questions))
    }

    /// The claims of a token of the daemon on this node.
    pub(in crate::hub) fn claims(&self, node: &str) -> Value {
        let now = get_current_timestamp();
        json!({
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": "system:serviceaccount:lockstep-system:lockstep-node-daemon",
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
            "kubernetes.io": {
                "namespace": "lockstep-system",
                "node": {"name": node, "uid": "n"},
                "pod": {"name": "lockstep-node-daemon-x", "uid": "p"},
                "serviceaccount": {"name": "lockstep-node-daemon", "uid": "s"},
            },
        })
    }

    /// A token with these claims, signed with the newest key.
    pub(in crate::hub) fn sign(&self, claims: &Value) -> String {
        let keys = self.0.keys.lock().unwrap();
        let (id, key) = keys.last().unwrap();
        let text = unsigned(&json!({"alg": "ES256", "kid": id}), claims);
        let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A good token of the daemon on this node.
    pub(in crate::hub) fn token(&self, node: &str) -> String {
        self.sign(&self.claims(node))
    }

    /// The published keys.
    pub(super) fn jwks(&self) -> Value {
        let keys = self.0.keys.lock().unwrap();
        let keys: Vec<Value> = keys
            .iter()
            .map(|(id, key)| {
                let point = key.public_key().as_ref();
                let (x, y) = (
                    URL_SAFE_NO_PAD.encode(&point[1..33]),
                    URL_SAFE_NO_PAD.encode(&point[33..]),
                );
                json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y})
            })
            .collect();
        json!({"keys": keys})
    }
}

/// The first two parts of a token.
pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

#[async_trait]
impl KeySource for Cluster {
    async fn read(&self) -> Result<Issuer, KeyError> {
        self.0.readings.fetch_add(1, Ordering::SeqCst);
        if self.0.away.load(Ordering::SeqCst) {
            return Err(KeyError::Late);
        }
        Issuer::parse(&json!({"issuer": ISSUER}).to_string(), &self.jwks().to_string())
    }
}

#[async_trait]
impl Reviewer for Cluster {
    async fn is_good(&self, token: &str) -> Result<bool, ReviewError> {
        self.0.questions.fetch_add(1, Ordering::SeqCst);
        if self.0.away.load(Ordering::SeqCst) {
            return Err(ReviewError::Late);
        }
        Ok(!self.0.revoked.lock().unwrap().contains(token))
    }
}
