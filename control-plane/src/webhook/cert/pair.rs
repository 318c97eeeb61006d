//! A serving certificate with its key and its CA, in PEM, as a Secret holds it; and how another CA takes the place of that.
//!
//! Promises: whoever trusts what is published trusts whatever is served, at each moment and after each step, whichever replica has seen it:
//!
//! ```text
//!            signs       published            next step
//! steady     current     current              90 days before the certificate ends: another CA is made
//! announced  current     current and next     after a day, when the API server has heard of it: it signs
//! replaced   next        next and previous    after a month: the one before is forgotten
//! ```

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
const NEXT: (&str, &str, &str) = ("next.crt", "next.key", "next.since");
const PREVIOUS: (&str, &str) = ("previous.crt", "previous.since");

/// Name of the CA that is made here.
const CA_NAME: &str = "lockstep-webhook-ca";
/// Days for which a CA certificate is made. Another CA takes its place long before.
const CA_DAYS: i32 = 10 * 365;
/// Days for which a serving certificate is made.
const DAYS: i32 = 365;
/// A certificate that has less time left than this is replaced.
const RENEW: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long another CA is published before it signs.
const ANNOUNCED: SignedDuration = SignedDuration::from_hours(24);
/// A certificate that has less time left than this cannot wait for another CA.
const HURRY: SignedDuration = SignedDuration::from_hours(2 * 24);
/// How long the CA before is published after that.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(30 * 24);

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
    /// The CA that will sign, and since when it is published.
    next: Option<(Ca, Timestamp)>,
    /// The certificate of the CA before, and since when it signs no more.
    previous: Option<(String, Timestamp)>,
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
        Ok(Self {
            next: self.next.clone(),
            previous: self.previous.clone(),
            ..Self::issue(ca, service, now)?
        })
    }

    /// What comes after this, and why; nothing while there is nothing to do.
    pub(super) fn step(
        &self,
        service: Service<'_>,
        now: Timestamp,
    ) -> Result<Option<(Self, &'static str)>, PairError> {
        let since = |at: &Timestamp| now.duration_since(*at);
        match (&self.next, &self.previous) {
            (Some((next, at)), _) if since(at) >= ANNOUNCED => {
                let mut after = Self::issue(next.clone(), service, now)?;
                after.previous = Some((self.ca.cert.clone(), now));
                Ok(Some((after, "the next CA signs")))
            }
            (None, _) if self.check(service, now, RENEW).is_err() => {
                let next = Ca::generate(CA_NAME, Some(Validity::days(now, CA_DAYS)))?;
                let mut after = self.clone();
                after.next = Some((next, now));
                Ok(Some((after, "the next CA is published")))
            }
            (_, Some((_, at))) if since(at) >= REMEMBERED => {
                let mut after = self.clone();
                after.previous = None;
                Ok(Some((after, "the CA before is forgotten")))
            }
            _ => Ok(None),
        }
    }

    /// What is to be trusted, in PEM.
    pub(super) fn trusted(&self) -> String {
        let mut all = self.ca.cert.clone();
        let next = self.next.iter().map(|(ca, _)| &ca.cert);
        let previous = self.previous.iter().map(|(cert, _)| cert);
        for cert in next.chain(previous) {
            if !all.ends_with('\n') {
                all.push('\n');
            }
            all.push_str(cert);
        }
        all
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
            next: None,
            previous: None,
        })
    }

    /// What is in a Secret's data.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, PairError> {
        let part = |key: &'static str| {
            let text = data.get(key).and_then(|value| str::from_utf8(&value.0).ok());
            let text = text.filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or(PairError::Missing(key))
        };
        let time = |key| part(key)?.parse().map_err(|_| PairError::Missing(key));
        let ca = |cert, key| {
            Ok::<_, PairError>(Ca {
                name: CA_NAME,
                cert: part(cert)?,
                key: part(key)?,
            })
        };
        let (next_cert, next_key, next_since) = NEXT;
        let (previous_cert, previous_since) = PREVIOUS;
        Ok(Self {
            ca: ca(CA_CERT, CA_KEY)?,
            cert: part(CERT)?,
            key: part(KEY)?,
            // What is damaged of these takes nothing from a pair that can be served.
            next: ca(next_cert, next_key).ok().zip(time(next_since).ok()),
            previous: part(previous_cert).ok().zip(time(previous_since).ok()),
        })
    }

    /// Puts it into a Secret's data, in the place of another one. What is not ours there stays.
    pub(super) fn put(&self, data: &mut BTreeMap<String, ByteString>) {
        for key in [NEXT.0, NEXT.1, NEXT.2, PREVIOUS.0, PREVIOUS.1] {
            data.remove(key);
        }
        data.extend(self.to_data());
    }

    /// In the form of a Secret's data.
    pub(super) fn to_data(&self) -> BTreeMap<String, ByteString> {
        let mut parts = vec![
            (CA_CERT, self.ca.cert.clone()),
            (CA_KEY, self.ca.key.clone()),
            (CERT, self.cert.clone()),
            (KEY, self.key.clone()),
        ];
        if let Some((ca, since)) = &self.next {
            let (cert, key, at) = NEXT;
            parts.extend([
                (cert, ca.cert.clone()),
                (key, ca.key.clone()),
                (at, since.to_string()),
            ]);
        }
        if let Some((cert, since)) = &self.previous {
            let (key, at) = PREVIOUS;
            parts.extend([(key, cert.clone()), (at, since.to_string())]);
        }
        parts
            .into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }

    /// What TLS is served with.
    pub(in crate::webhook) fn certified(&self) -> Result<Arc<CertifiedKey>, PairError> {
        certified(self.cert.as_bytes(), self.key.as_bytes())
    }

    /// Whether who trusts this CA may talk to that Service with it, now and until there is time for another one.
    pub(super) fn fits(&self, service: Service<'_>, now: Timestamp) -> Result<(), PairError> {
        self.check(service, now, HURRY)
    }

    fn check(&self, service: Service<'_>, now: Timestamp, ahead: SignedDuration) -> Result<(), PairError> {
        for at in [now, now.saturating_add(ahead).unwrap_or(now)] {
            self.is_trusted(&self.ca.cert, service, at)?;
        }
        Ok(())
    }

    /// Whether who trusts these certificates may talk to that Service with it at that time.
    fn is_trusted(&self, trusted: &str, service: Service<'_>, at: Timestamp) -> Result<(), PairError> {
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
