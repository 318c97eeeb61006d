//! The hub's certificate, and the CA that daemons verify it with.
//!
//! In a cluster the [`Authority`] is stored in a Secret and rotated; outside it lives in a
//! directory and never changes. Each process issues its own serving certificate and keeps it in
//! memory. Daemons verify a fixed server name, so the certificate is valid at any address of the
//! hub.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ObjectMeta, PostParams};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::authority::{Authority, CA_SECRET, SERVING_DAYS, TERMS, TlsError};
use super::ca::{Ca, Validity};
use super::rotation::{CA_CERT, CA_KEY};

/// The name in the serving certificate, independent of the hub's address.
pub const SERVER_NAME: &str = "lockstep-control-plane";
/// ConfigMap that publishes the CA certificate to the daemons; two certificates during a rotation.
pub const CA_CONFIG_MAP: &str = "lockstep-hub-ca";

/// Issues a serving certificate with this CA and validity.
pub(super) fn serving(ca: &Ca, validity: Option<Validity>) -> Result<Arc<CertifiedKey>, TlsError> {
    let issued = ca.issue(vec![SERVER_NAME.to_owned()], validity)?;
    let chain = vec![CertificateDer::from_pem_slice(issued.cert.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(Arc::new(certified))
}

/// Loads the CA from a directory (`ca.crt`, `ca.key`), or creates it there.
///
/// # Errors
/// [`TlsError`] if the files cannot be read or written, or hold no CA.
pub(crate) fn from_dir(dir: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let (cert, key) = (dir.join(CA_CERT), dir.join(CA_KEY));
    let file = |path: &Path| {
        let path = path.display().to_string();
        move |error| TlsError::File { path, error }
    };
    if cert.exists() && key.exists() {
        let ca = Ca {
            name: TERMS.name,
            cert: std::fs::read_to_string(&cert).map_err(file(&cert))?,
            key: std::fs::read_to_string(&key).map_err(file(&key))?,
        };
        return serving(&ca, None);
    }
    let ca = Ca::generate(TERMS.name, None)?;
    std::fs::create_dir_all(dir).map_err(file(dir))?;
    write_private(&key, &ca.key).map_err(file(&key))?;
    std::fs::write(&cert, &ca.cert).map_err(file(&cert))?;
    serving(&ca, None)
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

/// The cluster's authority, as this process last saw it.
#[derive(Default)]
pub(super) struct Cluster {
    /// The CA that issued the serving certificate, and when.
    issued: Option<(String, Timestamp)>,
}

/// How many attempts to make if other replicas write at the same time.
const ATTEMPTS: usize = 5;

impl Cluster {
    /// Ensures that the authority exists, is rotated, and is published to the daemons. Returns a
    /// new serving certificate if there is one.
    ///
    /// # Errors
    /// [`TlsError`] if the API server refuses or the Secret is damaged.
    pub(super) async fn check(
        &mut self,
        client: &kube::Client,
        namespace: &str,
        now: Timestamp,
    ) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
        for _ in 1..ATTEMPTS {
            match self.check_once(client, namespace, now).await {
                Err(TlsError::Api(error)) if is_conflict(&error) => {}
                checked => return checked,
            }
        }
        self.check_once(client, namespace, now).await
    }

    async fn check_once(
        &mut self,
        client: &kube::Client,
        namespace: &str,
        now: Timestamp,
    ) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        // Read before the Secret, so that a later authority that another replica publishes is not
        // overwritten.
        let published = maps.get_opt(CA_CONFIG_MAP).await.map_err(Box::new)?;
        let (mut secret, mut authority) = present(&secrets, now).await?;
        // The current state is published before anything follows it.
        let published = publish(&maps, published, &authority).await?;
        if let Some((after, why)) = authority.step(now)? {
            after.put(secret.data.get_or_insert_default());
            match secrets.replace(CA_SECRET, &PostParams::default(), &secret).await {
                Ok(_) => {
                    tracing::info!(%why, "the hub's authority changed");
                    authority = after;
                    publish(&maps, Some(published), &authority).await?;
                }
                // Another replica wrote first: the next check reads its state.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(Box::new(error).into()),
            }
        }
        self.issue(&authority, now)
    }

    /// Issues a new certificate for a new CA, and every day.
    fn issue(
        &mut self,
        authority: &Authority,
        now: Timestamp,
    ) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
        let ca = &authority.rotation.current;
        // A certificate from the future was issued before the clock was set back.
        let is_good = |(by, at): &(String, Timestamp)| {
            *by == ca.cert && *at <= now && now.duration_since(*at).as_hours() < 24
        };
        if self.issued.as_ref().is_some_and(is_good) {
            return Ok(None);
        }
        let certificate = serving(ca, Some(Validity::days(now, SERVING_DAYS)))?;
        self.issued = Some((ca.cert.clone(), now));
        Ok(Some(certificate))
    }
}

/// Publishes the trusted certificates to the daemons. Fails with a conflict if another client wrote
/// since `present` was read.
async fn publish(
    maps: &Api<ConfigMap>,
    present: Option<ConfigMap>,
    authority: &Authority,
) -> Result<ConfigMap, TlsError> {
    let trusted = authority.rotation.trusted();
    let params = PostParams {
        field_manager: Some("lockstep-control-plane".to_owned()),
        ..PostParams::default()
    };
    let written = match present {
        Some(map) if map.data.as_ref().and_then(|data| data.get(CA_CERT)) == Some(&trusted) => {
            return Ok(map);
        }
        Some(mut map) => {
            map.data = Some(BTreeMap::from([(CA_CERT.to_owned(), trusted)]));
            maps.replace(CA_CONFIG_MAP, &params, &map).await
        }
        None => {
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(CA_CONFIG_MAP.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(BTreeMap::from([(CA_CERT.to_owned(), trusted)])),
                ..ConfigMap::default()
            };
            maps.create(&params, &map).await
        }
    };
    Ok(written.map_err(Box::new)?)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Reads the Secret and its authority, or creates them.
async fn present(secrets: &Api<Secret>, now: Timestamp) -> Result<(Secret, Authority), TlsError> {
    let read = |secret: Secret| {
        let made = secret
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(now, |time| time.0);
        let authority = Authority::from_data(secret.data.as_ref().unwrap_or(&BTreeMap::new()), made)?;
        Ok((secret, authority))
    };
    if let Some(secret) = secrets.get_opt(CA_SECRET).await.map_err(Box::new)? {
        return read(secret);
    }
    let mut data = BTreeMap::new();
    Authority::generate(now)?.put(&mut data);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(CA_SECRET.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(secret) => read(secret),
        // Another replica created it first: its CA is used.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            read(secrets.get(CA_SECRET).await.map_err(Box::new)?)
        }
        Err(error) => Err(TlsError::Api(Box::new(error))),
    }
}
