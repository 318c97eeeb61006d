//! A serving certificate with its key and its CA, in PEM, as a Secret holds it. The next CA is
//! generated 90 days before the certificate expires; [`crate::net::tls::rotation`] describes how it
//! takes over.

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
use crate::net::tls::Validity;
use crate::net::tls::rotation::{Change, HURRY, Rotation, Terms, Trust, text};

#[cfg(test)]
mod tests;

/// Key of the serving certificate, with its chain to the CA.
pub(super) const CERT: &str = "tls.crt";
/// Key of the serving certificate's private key.
pub(super) const KEY: &str = "tls.key";

const TERMS: Terms = Terms {
    name: "lockstep-webhook-ca",
    days: 10 * 365,
};
/// Validity of a serving certificate, in days.
const DAYS: i32 = 365;
/// A certificate with less time left than this is replaced.
const RENEW: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Why a pair cannot be generated or served.
#[derive(Debug, Error)]
pub(in crate::endpoints::webhook) enum PairError {
    #[error("{0} is missing or damaged")]
    Missing(&'static str),
    #[error("PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("certificate: {0}")]
    Tls(#[from] rustls::Error),
    #[error("CA: {0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
    #[error("{0}")]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error("failed to generate a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// Parses a certificate chain and its key.
///
/// # Errors
/// If one of them is malformed, or they do not match.
pub(super) fn certified(chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, PairError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err(PairError::Missing(CERT));
    }
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
    Ok(Arc::new(certified))
}

/// The contents of the Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::endpoints::webhook) struct Pair {
    pub(in crate::endpoints::webhook) authority: Rotation,
    pub(super) cert: String,
    pub(super) key: String,
}

impl Pair {
    /// A new certificate for a Service, from a new CA.
    pub(in crate::endpoints::webhook) fn generate(
        service: Service<'_>,
        now: Timestamp,
    ) -> Result<Self, PairError> {
        Self::issue(Rotation::generate(TERMS, now)?, service, now)
    }

    /// A new certificate for a Service, from the same CA.
    pub(super) fn renewed(&self, service: Service<'_>, now: Timestamp) -> Result<Self, PairError> {
        Self::issue(self.authority.renewed(now)?, service, now)
    }

    /// The next pair, and its change; `None` if there is nothing to do. `trust` tells if the API
    /// server trusts every CA that it should.
    pub(super) fn step(
        &self,
        service: Service<'_>,
        now: Timestamp,
        trust: Trust,
    ) -> Result<Option<(Self, Change)>, PairError> {
        let is_due = || self.check(service, now, RENEW).is_err();
        let Some((authority, change)) = self.authority.step(now, is_due, trust)? else {
            return Ok(None);
        };
        let after = match change {
            Change::Signs => Self::issue(authority, service, now)?,
            _ => Self {
                authority,
                ..self.clone()
            },
        };
        Ok(Some((after, change)))
    }

    fn issue(authority: Rotation, service: Service<'_>, now: Timestamp) -> Result<Self, PairError> {
        let names = [
            service.host(),
            format!("{}.cluster.local", service.host()),
            format!("{}.{}", service.name, service.namespace),
            // For an API server on the same machine, by URL.
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        let validity = Validity::days(now, DAYS);
        let issued = authority.current.issue(names.into(), Some(validity))?;
        Ok(Self {
            authority,
            cert: issued.cert,
            key: issued.key,
        })
    }

    /// Reads a Secret's data.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, PairError> {
        let part = |key| text(data, key).map(str::to_owned).ok_or(PairError::Missing(key));
        Ok(Self {
            authority: Rotation::from_data(TERMS, data).map_err(PairError::Missing)?,
            cert: part(CERT)?,
            key: part(KEY)?,
        })
    }

    /// Writes the pair into a Secret's data. Other keys stay.
    pub(super) fn put(&self, data: &mut BTreeMap<String, ByteString>) {
        self.authority.put(data);
        for (key, part) in [(CERT, &self.cert), (KEY, &self.key)] {
            data.insert(key.to_owned(), ByteString(part.clone().into_bytes()));
        }
    }

    /// The certificate and key for TLS.
    pub(in crate::endpoints::webhook) fn certified(&self) -> Result<Arc<CertifiedKey>, PairError> {
        certified(self.cert.as_bytes(), self.key.as_bytes())
    }

    /// Checks that clients which trust this CA accept the certificate for that Service, now and
    /// long enough for a replacement.
    pub(super) fn fits(&self, service: Service<'_>, now: Timestamp) -> Result<(), PairError> {
        self.check(service, now, HURRY)
    }

    fn check(&self, service: Service<'_>, now: Timestamp, ahead: SignedDuration) -> Result<(), PairError> {
        for at in [now, now.saturating_add(ahead).unwrap_or(now)] {
            self.check_trusted(&self.authority.current.cert, service, at)?;
        }
        Ok(())
    }

    /// Checks that clients which trust these certificates accept the pair for that Service at that
    /// time.
    fn check_trusted(&self, trusted: &str, service: Service<'_>, at: Timestamp) -> Result<(), PairError> {
        let own = self.certified()?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
            roots.add(root?)?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        let (end, between) = own.cert.split_first().ok_or(PairError::Missing(CERT))?;
        let name = ServerName::try_from(service.host())?;
        let at = UnixTime::since_unix_epoch(at.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs());
        verifier.verify_server_cert(end, between, &name, &[], at)?;
        Ok(())
    }
}
