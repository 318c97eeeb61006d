//! The authority of the hub's certificates, and how another one takes its place.
//!
//! Promises: whoever trusts what is published trusts whatever is served, at each moment and after each step, whichever replica has seen it:
//!
//! ```text
//!            signs       published            next step
//! steady     current     current              a year after it was made: another one is made
//! announced  current     current and next     after a day, when all nodes have heard of it: it signs
//! replaced   next        next and previous    after a month, when nothing of the one before is served: that one is forgotten
//! ```

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

use super::ca::{Ca, Validity};
use super::hub::TlsError;

#[cfg(test)]
mod tests;

const fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// How old the one that signs may become before another one is made.
const SIGNS: SignedDuration = days(365);
/// How long another one is published before it signs. Nodes hear of it within some minutes.
const ANNOUNCED: SignedDuration = days(1);
/// How long the one before is published after that: longer than [`SERVING_DAYS`].
const REMEMBERED: SignedDuration = days(30);
/// Days for which its certificate is good: longer than all of that.
const CA_DAYS: i32 = 500;
/// Days for which a serving certificate is good. Each replica makes another one every day.
pub(super) const SERVING_DAYS: i32 = 14;

/// Name of each.
pub(super) const CA_NAME: &str = "lockstep-hub-ca";
/// Key of the certificates in the Secret and in the ConfigMap, and of the private key.
pub(super) const CA_CERT: &str = "ca.crt";
pub(super) const CA_KEY: &str = "ca.key";
const CA_SINCE: &str = "ca.since";
const NEXT: (&str, &str, &str) = ("next.crt", "next.key", "next.since");
const PREVIOUS: (&str, &str) = ("previous.crt", "previous.since");

/// What the Secret holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    /// The one that signs.
    pub(super) current: Ca,
    /// Since when there is one: it was made, or took the place of another.
    since: Timestamp,
    /// The one that will sign, and since when it is published.
    next: Option<(Ca, Timestamp)>,
    /// The certificate of the one before, and since when it signs no more.
    previous: Option<(String, Timestamp)>,
}

impl Authority {
    /// The first one.
    pub(super) fn generate(now: Timestamp) -> Result<Self, TlsError> {
        Ok(Self {
            current: new_ca(now)?,
            since: now,
            next: None,
            previous: None,
        })
    }

    /// What comes after this, and why; nothing while there is nothing to do.
    pub(super) fn step(&self, now: Timestamp) -> Result<Option<(Self, &'static str)>, TlsError> {
        let mut after = self.clone();
        let why = match (&self.next, &self.previous) {
            (Some((next, since)), _) if now.duration_since(*since) >= ANNOUNCED => {
                after.previous = Some((self.current.cert.clone(), now));
                after.current = next.clone();
                after.since = now;
                after.next = None;
                "the next authority signs"
            }
            (_, Some((_, since))) if now.duration_since(*since) >= REMEMBERED => {
                after.previous = None;
                "the previous authority is forgotten"
            }
            (None, None) if now.duration_since(self.since) >= SIGNS => {
                after.next = Some((new_ca(now)?, now));
                "the next authority is published"
            }
            _ => return Ok(None),
        };
        Ok(Some((after, why)))
    }

    /// What is to be trusted, in PEM.
    pub(super) fn trusted(&self) -> String {
        let next = self.next.iter().map(|(ca, _)| &ca.cert);
        let previous = self.previous.iter().map(|(cert, _)| cert);
        let all = std::iter::once(&self.current.cert).chain(next).chain(previous);
        all.map(|cert| format!("{}\n", cert.trim_end())).collect()
    }

    /// What is in the data of a Secret that was made at that time.
    pub(super) fn from_data(data: &BTreeMap<String, ByteString>, made: Timestamp) -> Result<Self, TlsError> {
        let text = |key: &'static str| {
            let bytes = data.get(key)?;
            Some(str::from_utf8(&bytes.0).map_err(|_| TlsError::Secret(key)))
        };
        let need = |key: &'static str| text(key).unwrap_or(Err(TlsError::Secret(key)));
        let time = |key: &'static str| need(key)?.parse().map_err(|_| TlsError::Secret(key));
        let ca = |cert, key| {
            Ok::<_, TlsError>(Ca {
                name: CA_NAME,
                cert: need(cert)?.to_owned(),
                key: need(key)?.to_owned(),
            })
        };
        let (next_cert, next_key, next_since) = NEXT;
        let (previous_cert, previous_since) = PREVIOUS;
        Ok(Self {
            current: ca(CA_CERT, CA_KEY)?,
            // One of before the time that authorities are replaced does not say.
            since: data.get(CA_SINCE).map_or(Ok(made), |_| time(CA_SINCE))?,
            next: data
                .get(next_cert)
                .map(|_| Ok::<_, TlsError>((ca(next_cert, next_key)?, time(next_since)?)))
                .transpose()?,
            previous: data
                .get(previous_cert)
                .map(|_| Ok::<_, TlsError>((need(previous_cert)?.to_owned(), time(previous_since)?)))
                .transpose()?,
        })
    }

    /// In the form of a Secret's data.
    pub(super) fn to_data(&self) -> BTreeMap<String, ByteString> {
        let mut data = vec![
            (CA_CERT, self.current.cert.clone()),
            (CA_KEY, self.current.key.clone()),
            (CA_SINCE, self.since.to_string()),
        ];
        if let Some((ca, since)) = &self.next {
            let (cert, key, at) = NEXT;
            data.extend([
                (cert, ca.cert.clone()),
                (key, ca.key.clone()),
                (at, since.to_string()),
            ]);
        }
        if let Some((cert, since)) = &self.previous {
            let (key, at) = PREVIOUS;
            data.extend([(key, cert.clone()), (at, since.to_string())]);
        }
        data.into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
            .collect()
    }
}

fn new_ca(now: Timestamp) -> Result<Ca, TlsError> {
    Ok(Ca::generate(CA_NAME, Some(Validity::days(now, CA_DAYS)))?)
}
