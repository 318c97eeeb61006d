//! The tokens of the fleet, signed like ServiceAccount tokens with a key for this run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lockstep_control_plane::hub::{Expected, Issuer, KeyError, KeySource, ReviewError, Reviewer};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::names;

const ISSUER: &str = "https://kubernetes.default.svc";
const AUDIENCE: &str = "lockstep-hub";
const KEY_ID: &str = "bench";
const JWKS: &str = "jwks.json";

/// The issuer and audience that the hub accepts.
pub(crate) fn expected() -> Expected {
    Expected::new(AUDIENCE, "lockstep-system", "lockstep-node-daemon")
}

/// The file with the token of a node's daemon.
pub(crate) fn file(dir: &Path, node: usize) -> PathBuf {
    dir.join("tokens").join(names::node(node))
}

/// Creates a key, and tokens for this many nodes that are valid for a day.
pub(crate) fn issue(dir: &Path, nodes: usize) -> Result<()> {
    let rng = SystemRandom::new();
    let failed = |_| anyhow!("cannot create a key");
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).map_err(failed)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &rng)
        .map_err(|_| anyhow!("cannot use the key"))?;
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let jwk = json!({
        "use": "sig", "kty": "EC", "kid": KEY_ID, "crv": "P-256", "alg": "ES256",
        "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
    });
    fs::create_dir_all(dir.join("tokens"))?;
    fs::write(dir.join(JWKS), json!({"keys": [jwk]}).to_string())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(&json!({"alg": "ES256", "kid": KEY_ID}));
    for node in 0..nodes {
        let signed = format!("{header}.{}", part(&claims(node, now)));
        let signature = key.sign(&rng, signed.as_bytes()).map_err(failed)?;
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        fs::write(file(dir, node), token)?;
    }
    Ok(())
}

fn claims(node: usize, now: u64) -> Value {
    json!({
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "sub": "system:serviceaccount:lockstep-system:lockstep-node-daemon",
        "iat": now,
        "nbf": now,
        "exp": now + 24 * 3600,
        "kubernetes.io": {
            "namespace": "lockstep-system",
            "node": {"name": names::node(node), "uid": names::pod_uid(node)},
            "pod": {"name": format!("lockstep-node-daemon-{node:05}"), "uid": names::pod_uid(node)},
            "serviceaccount": {"name": "lockstep-node-daemon", "uid": names::ACCOUNT},
        },
    })
}

/// Acts as the API server: publishes the key, and reports every token as valid.
pub(crate) struct Cluster(pub(crate) PathBuf);

#[async_trait]
impl KeySource for Cluster {
    async fn read(&self) -> Result<Issuer, KeyError> {
        let jwks = fs::read_to_string(self.0.join(JWKS)).map_err(|_| KeyError::Late)?;
        Issuer::parse(&json!({"issuer": ISSUER}).to_string(), &jwks)
    }
}

#[async_trait]
impl Reviewer for Cluster {
    async fn is_good(&self, _: &str) -> Result<bool, ReviewError> {
        Ok(true)
    }
}
