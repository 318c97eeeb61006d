//! The authority of the hub's certificates. A new one is generated after a year;
//! [`super::rotation`] replaces the old one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use thiserror::Error;

use super::rotation::{Change, Rotation, Terms, Trust, text};

#[cfg(test)]
mod tests;

/// Secret that holds the CA, in the product's namespace.
pub const CA_SECRET: &str = "lockstep-hub-tls";
/// How long an authority signs before the next one is generated.
const SIGNS: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How many days a serving certificate is valid: fewer than a previous authority stays published.
/// Each replica issues a new one every day.
pub(super) const SERVING_DAYS: i32 = 14;

pub(super) const TERMS: Terms = Terms {
    name: "lockstep-hub-ca",
    days: 500,
};
const CA_SINCE: &str = "ca.since";

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate or key could not be generated or parsed.
    #[error("hub certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The certificate cannot be used for serving.
    #[error("hub certificate: {0}")]
    Serve(#[from] rustls::Error),
    /// The certificate is not valid PEM.
    #[error("hub certificate: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// A file could not be read or written.
    #[error("hub certificate: {path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The Secret lacks a part.
    #[error("Secret {CA_SECRET} has no usable {0}; delete it to create a new CA")]
    Secret(&'static str),
    /// The API server refused.
    #[error("hub certificate: {0}")]
    Api(#[from] Box<kube::Error>),
}

/// The authority as the Secret stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) rotation: Rotation,
    /// Since when the current one signs.
    since: Timestamp,
}

impl Authority {
    /// Generates the first authority.
    pub(super) fn generate(now: Timestamp) -> Result<Self, TlsError> {
        Ok(Self {
            rotation: Rotation::generate(TERMS, now)?,
            since: now,
        })
    }

    /// The next state and what it changes; `None` if there is nothing to do. Everything to trust
    /// must have been published to the daemons.
    pub(super) fn step(&self, now: Timestamp) -> Result<Option<(Self, Change)>, TlsError> {
        // The clock may have been set back.
        let since = self.since.min(now);
        let is_due = || now.duration_since(since) >= SIGNS;
        Ok(match self.rotation.step(now, is_due, Trust::Published)? {
            Some((rotation, change)) => {
                let since = if change == Change::Signs { now } else { since };
                Some((Self { rotation, since }, change))
            }
            None if since != self.since => {
                let rotation = self.rotation.clone();
                Some((Self { rotation, since }, Change::Mended))
            }
            None => None,
        })
    }

    /// Parses the data of a Secret that was created at `made`.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>, made: Timestamp) -> Result<Self, TlsError> {
        let since = |text: &str| text.parse().ok();
        Ok(Self {
            rotation: Rotation::from_data(TERMS, data).map_err(TlsError::Secret)?,
            // Secrets of versions without rotation lack the time.
            since: match data.contains_key(CA_SINCE) {
                true => text(data, CA_SINCE)
                    .and_then(since)
                    .ok_or(TlsError::Secret(CA_SINCE))?,
                false => made,
            },
        })
    }

    /// Writes the authority into a Secret's data.
    pub(super) fn put(&self, data: &mut BTreeMap<String, ByteString>) {
        self.rotation.put(data);
        let since = self.since.to_string();
        data.insert(CA_SINCE.to_owned(), ByteString(since.into_bytes()));
    }
}
