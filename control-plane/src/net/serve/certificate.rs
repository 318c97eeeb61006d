//! The certificate of the metrics endpoint.
//!
//! Files are read for each connection, so a new certificate is used from the next connection on.
//! Without files a self-signed certificate stands in, as in upstream: it encrypts, but proves no
//! identity.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::config::settings::TlsOptions;

/// The source of the certificate.
pub(super) struct Certificate {
    dir: Option<PathBuf>,
    own: Arc<ServerConfig>,
    tls: TlsOptions,
}

impl Certificate {
    /// Uses tls.crt and tls.key of this directory if they exist, else a self-signed certificate
    /// that is generated now.
    pub(super) fn new(dir: Option<PathBuf>, tls: TlsOptions) -> Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let own = server(&tls, vec![made.cert.into()], key)?;
        Ok(Self { dir, own, tls })
    }

    /// The TLS configuration for the next connection.
    pub(super) async fn config(&self) -> Result<Arc<ServerConfig>> {
        let Some(dir) = &self.dir else {
            return Ok(Arc::clone(&self.own));
        };
        let (Some(certificate), Some(key)) = (
            read(&dir.join("tls.crt")).await?,
            read(&dir.join("tls.key")).await?,
        ) else {
            return Ok(Arc::clone(&self.own));
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
        let chain = chain.with_context(|| format!("{}/tls.crt", dir.display()))?;
        let key =
            PrivateKeyDer::from_pem_slice(&key).with_context(|| format!("{}/tls.key", dir.display()))?;
        server(&self.tls, chain, key).with_context(|| format!("the certificate in {}", dir.display()))
    }
}

fn server(
    tls: &TlsOptions,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>> {
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(Arc::new(tls.server(Arc::new(SingleCertAndKey::from(certified)))?))
}

/// Reads a file; `None` if it does not exist.
async fn read(file: &Path) -> Result<Option<Vec<u8>>> {
    match tokio::fs::read(file).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}
