//! A serving certificate with its key and its CA, in PEM, as a Secret holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use thiserror::Error;

use super::Service;
use crate::tls::{Ca, Validity};

#[cfg(test)]
mod tests;

/// Key of the serving certificate, with what leads to the CA.
pub(super) const CERT: &str = "tls.crt";
/// Key of the serving certificate's private key.
pub(super) const KEY: &str = "tls.key";
const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";

/// Name of the CA that is made here.
const CA_NAME: &str = "lockstep-webhook-ca";
/// Days for which a CA certificate is made. It is renewed together with each serving certificate.
const CA_DAYS: i32 = 10 * 365;
/// Days for which a serving certificate is made.
const DAYS: i32 = 365;
/// A certificate that has less time left than this is renewed.
const RENEW: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Why a pair cannot be had or served.
#[derive(Debug, Error)]
pub(in crate::webhook) enum PairError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("certificate: {0}")]
    Tls(#[from] rustls::Error),
    #[error("CA: {0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
    #[error("{0}")]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// A certificate, with what leads to its CA, and its key. An error where they do not fit each other.
pub(super) fn certified(chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, PairError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err(PairError::Missing(CERT));
    }
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(Arc::new(certified))
}

/// What the Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::webhook) struct Pair {
    pub(in crate::webhook) ca: Ca,
    pub(super) cert: String,
    pub(super) key: String,
}

impl Pair {
    /// A new certificate for a Service, by a new CA.
    pub(in crate::webhook) fn generate(service: Service<'_>, now: Timestamp) -> Result<Self, PairError> {
        let ca = Ca::generate(CA_NAME, Some(Validity::days(now, CA_DAYS)))?;
        Self::issue(ca, service, now)
    }

    /// A new certificate for a Service, by the same CA.
    pub(super) fn renewed(&self, service: Service<'_>, now: Timestamp) -> Result<Self, PairError> {
        let ca = self.ca.renewed(Validity::days(now, CA_DAYS))?;
        Self::issue(ca, service, now)
    }

    fn issue(ca: Ca, service: Service<'_>, now: Timestamp) -> Result<Self, PairError> {
        let names = [
            service.host(),
            format!("{}.cluster.local", service.host()),
            format!("{}.{}", service.name, service.namespace),
            // For an API server on the same machine, by URL.
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        let issued = ca.issue(names.into(), Some(Validity::days(now, DAYS)))?;
        Ok(Self {
            ca,
            cert: issued.cert,
            key: issued.key,
        })
    }

    /// What is in a Secret's data.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, PairError> {
        let part = |key: &'static str| {
            let text = data.get(key).and_then(|value| str::from_utf8(&value.0).ok());
            let text = text.filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or(PairError::Missing(key))
        };
        Ok(Self {
            ca: Ca {
                name: CA_NAME,
                cert: part(CA_CERT)?,
                key: part(CA_KEY)?,
            },
            cert: part(CERT)?,
            key: part(KEY)?,
        })
    }

    /// In the form of a Secret's data.
    pub(super) fn to_data(&self) -> BTreeMap<String, ByteString> {
        let parts = [
            (CA_CERT, &self.ca.cert),
            (CA_KEY, &self.ca.key),
            (CERT, &self.cert),
            (KEY, &self.key),
        ];
        parts
            .into_iter()
            .map(|(key, pem)| (key.to_owned(), ByteString(pem.clone().into_bytes())))
            .collect()
    }

    /// What TLS is served with.
    pub(in crate::webhook) fn certified(&self) -> Result<Arc<CertifiedKey>, PairError> {
        certified(self.cert.as_bytes(), self.key.as_bytes())
    }

    /// Whether who trusts this CA may talk to that Service with it, now and for long enough.
    pub(super) fn check(&self, service: Service<'_>, now: Timestamp) -> Result<(), PairError> {
        let own = self.certified()?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.cert.as_bytes())?)?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        let (end, between) = own.cert.split_first().ok_or(PairError::Missing(CERT))?;
        let name = ServerName::try_from(service.host())?;
        for at in [now, now.saturating_add(RENEW).unwrap_or(now)] {
            let at = UnixTime::since_unix_epoch(at.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs());
            verifier.verify_server_cert(end, between, &name, &[], at)?;
        }
        Ok(())
    }
}
