//! The hub's certificate, and the CA that daemons check it with.
//!
//! The CA lives in a Secret (in cluster) or a directory (out of cluster) and is made when missing; the serving certificate is made anew at
//! each start and lives in memory. Daemons verify a fixed server name, so the certificate fits however they reach the hub.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use thiserror::Error;
use tonic::transport::Identity;

use super::ca::Ca;

/// The name in the serving certificate, whatever address the hub is reached at.
pub const SERVER_NAME: &str = "lockstep-control-plane";
/// Secret that holds the CA, in the product's namespace.
pub const CA_SECRET: &str = "lockstep-hub-tls";
/// ConfigMap that publishes the CA certificate to the daemons.
pub const CA_CONFIG_MAP: &str = "lockstep-hub-ca";

const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";

/// Why no certificate could be had.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate or key could not be made or read.
    #[error("hub certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error("hub certificate: {path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The Secret lacks a part.
    #[error("Secret {CA_SECRET} has no usable {0}; delete it to have a new CA made")]
    Secret(&'static str),
    /// The API server refused.
    #[error("hub certificate: {0}")]
    Api(#[from] Box<kube::Error>),
}

/// Name of the CA.
const CA_NAME: &str = "lockstep-hub-ca";

fn serving(ca: &Ca) -> Result<Identity, TlsError> {
    let issued = ca.issue(vec![SERVER_NAME.to_owned()], None)?;
    Ok(Identity::from_pem(issued.cert, issued.key))
}

/// Takes the CA from a directory (`ca.crt`, `ca.key`), making it where it is missing.
///
/// # Errors
/// [`TlsError`] where the files cannot be read or written, or hold no CA.
pub fn from_dir(dir: &Path) -> Result<Identity, TlsError> {
    let (cert, key) = (dir.join(CA_CERT), dir.join(CA_KEY));
    let file = |path: &Path| {
        let path = path.display().to_string();
        move |error| TlsError::File { path, error }
    };
    if cert.exists() && key.exists() {
        let ca = Ca {
            name: CA_NAME,
            cert: std::fs::read_to_string(&cert).map_err(file(&cert))?,
            key: std::fs::read_to_string(&key).map_err(file(&key))?,
        };
        return serving(&ca);
    }
    let ca = Ca::generate(CA_NAME, None)?;
    std::fs::create_dir_all(dir).map_err(file(dir))?;
    write_private(&key, &ca.key).map_err(file(&key))?;
    std::fs::write(&cert, &ca.cert).map_err(file(&cert))?;
    serving(&ca)
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Takes the CA from the Secret, making it where it is missing, and publishes its certificate in the ConfigMap.
///
/// # Errors
/// [`TlsError`] where the API server refuses or the Secret is damaged.
pub async fn from_cluster(client: &kube::Client, namespace: &str) -> Result<Identity, TlsError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let ca = match secrets.get_opt(CA_SECRET).await.map_err(Box::new)? {
        Some(secret) => from_secret(&secret)?,
        None => create_secret(&secrets).await?,
    };
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CA_CONFIG_MAP.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(CA_CERT.to_owned(), ca.cert.clone())])),
        ..ConfigMap::default()
    };
    Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .patch(
            CA_CONFIG_MAP,
            &PatchParams::apply("lockstep-control-plane").force(),
            &Patch::Apply(&map),
        )
        .await
        .map_err(Box::new)?;
    serving(&ca)
}

async fn create_secret(secrets: &Api<Secret>) -> Result<Ca, TlsError> {
    let ca = Ca::generate(CA_NAME, None)?;
    let data = [(CA_CERT, &ca.cert), (CA_KEY, &ca.key)];
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(CA_SECRET.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.into_iter()
                .map(|(name, pem)| (name.to_owned(), ByteString(pem.clone().into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(ca),
        // Another replica was first: its CA is the one.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            from_secret(&secrets.get(CA_SECRET).await.map_err(Box::new)?)
        }
        Err(error) => Err(TlsError::Api(Box::new(error))),
    }
}

fn from_secret(secret: &Secret) -> Result<Ca, TlsError> {
    let part = |name: &'static str| {
        let bytes = secret
            .data
            .as_ref()
            .and_then(|data| data.get(name))
            .ok_or(TlsError::Secret(name))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| TlsError::Secret(name))
    };
    Ok(Ca {
        name: CA_NAME,
        cert: part(CA_CERT)?,
        key: part(CA_KEY)?,
    })
}
