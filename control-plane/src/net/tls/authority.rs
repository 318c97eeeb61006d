//! The authority of the hub's certificates. Another one is made when it has signed for a year; how
//! that takes its place is in [`super::rotation`].

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use thiserror::Error;

use super::rotation::{Change, Rotation, Terms, Trust, text};

#[cfg(test)]
mod tests;

/// Secret that holds the CA, in the product's namespace.
pub const CA_SECRET: &str = "lockstep-hub-tls";
/// How old the one that signs may become before another one is made.
const SIGNS: SignedDuration = SignedDuration::from_hours(24 * 365);
/// Days for which a serving certificate is good, fewer than an authority is remembered for. Each
/// replica makes another one every day.
pub(super) const SERVING_DAYS: i32 = 14;

pub(super) const TERMS: Terms = Terms {
    name: "lockstep-hub-ca",
    days: 500,
};
const CA_SINCE: &str = "ca.since";

/// Why no certificate could be had.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A certificate or key could not be made or read.
    #[error("hub certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// What was made cannot be served.
    #[error("hub certificate: {0}")]
    Serve(#[from] rustls::Error),
    /// What was made cannot be read.
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
    #[error("Secret {CA_SECRET} has no usable {0}; delete it to have a new CA made")]
    Secret(&'static str),
    /// The API server refused.
    #[error("hub certificate: {0}")]
    Api(#[from] Box<kube::Error>),
}

/// What the Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) rotation: Rotation,
    /// Since when the current one signs: it was made, or took the place of another.
    since: Timestamp,
}

impl Authority {
    /// The first one.
    pub(super) fn generate(now: Timestamp) -> Result<Self, TlsError> {
        Ok(Self {
            rotation: Rotation::generate(TERMS, now)?,
            since: now,
        })
    }

    /// What comes after this, and what that is; nothing while there is nothing to do. Daemons must
    /// have been told of all that is to be trusted.
    pub(super) fn step(&self, now: Timestamp) -> Result<Option<(Self, Change)>, TlsError> {
        // The clock was put back.
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

    /// What is in the data of a Secret that was made at that time.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>, made: Timestamp) -> Result<Self, TlsError> {
        let since = |text: &str| text.parse().ok();
        Ok(Self {
            rotation: Rotation::from_data(TERMS, data).map_err(TlsError::Secret)?,
            // One of before the time that authorities are replaced does not say.
            since: match data.contains_key(CA_SINCE) {
                true => text(data, CA_SINCE)
                    .and_then(since)
                    .ok_or(TlsError::Secret(CA_SINCE))?,
                false => made,
            },
        })
    }

    /// Puts it into a Secret's data, in the place of another one.
    pub(super) fn put(&self, data: &mut BTreeMap<String, ByteString>) {
        self.rotation.put(data);
        let since = self.since.to_string();
        data.insert(CA_SINCE.to_owned(), ByteString(since.into_bytes()));
    }
}
