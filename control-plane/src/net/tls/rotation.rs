//! An authority as a Secret holds it, and how another one takes its place.
//!
//! Promises: a client that trusts what is published trusts whatever is served, at each moment and
//! after each step, whichever replica has seen it. Who publishes says when all have been told;
//! nobody signs before that.
//!
//! ```text
//!            signs       published            next step
//! steady     current     current              when it is due: another one is made
//! made       current     current and next     when all are told: that is written down
//! announced  current     current and next     after a day, when all are still told: it signs
//! replaced   next        next and previous    after a month: the one before is forgotten
//! ```
//!
//! Where the Secret is damaged: without the current one there is nothing; a next or previous one
//! that cannot be used is left out, and the Secret written without it.
//!
//! Clocks differ, and may be put back. One that is up to a day behind waits for a time that has not
//! come yet; a time further ahead is taken for the present, and written down so. A current one that
//! has not begun was made by a clock that was ahead: it is renewed by its key.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

use super::ca::{Ca, Validity, is_certificate};

#[cfg(test)]
mod tests;

/// How long another one is published before it signs. API servers hear of it at once, nodes within
/// some minutes.
pub(crate) const ANNOUNCED: SignedDuration = SignedDuration::from_hours(24);
/// How long the one before is published after that: longer than what it has signed is served.
pub(crate) const REMEMBERED: SignedDuration = SignedDuration::from_hours(30 * 24);
/// What has less time left than this cannot wait for another authority: it is renewed by the same
/// key.
pub(crate) const HURRY: SignedDuration = SignedDuration::from_hours(2 * 24);

/// Keys of the current one in the Secret.
pub(crate) const CA_CERT: &str = "ca.crt";
pub(crate) const CA_KEY: &str = "ca.key";
const NEXT_CERT: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// When it was made. Versions of before [`NEXT_TOLD`] have it sign a day later.
const NEXT_SINCE: &str = "next.since";
const NEXT_TOLD: &str = "next.told";
const PREVIOUS_CERT: &str = "previous.crt";
const PREVIOUS_SINCE: &str = "previous.since";

/// What authorities are made like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) name: &'static str,
    /// For how many days a certificate is good: longer than it takes until another one has taken
    /// its place.
    pub(crate) days: i32,
}

impl Terms {
    fn generate(self, now: Timestamp) -> Result<Ca, rcgen::Error> {
        Ca::generate(self.name, Some(Validity::days(now, self.days)))
    }
}

/// The authority that signs, with those before and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rotation {
    terms: Terms,
    pub(crate) current: Ca,
    next: Option<NextAuthority>,
    /// The certificate of the one before, and since when it no longer signs.
    previous: Option<(String, Timestamp)>,
    /// The Secret holds something of a next or previous one that cannot be used.
    is_damaged: bool,
}

/// The one that will sign.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NextAuthority {
    ca: Ca,
    made: Timestamp,
    /// Since when all who have to trust it are told.
    told: Option<Timestamp>,
}

/// How far [`Rotation::trusted`] is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All that is to be trusted is published, everywhere.
    Published,
    /// Somebody has not been told of all of it.
    Pending,
}

impl Trust {
    /// [`Trust::Published`] if all are told.
    pub(crate) fn told(are_told: bool) -> Self {
        match are_told {
            true => Self::Published,
            false => Self::Pending,
        }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Mended,
    Renewed,
    Made,
    Told,
    Signs,
    Forgotten,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mended => "what was damaged, or of a time to come, is mended",
            Self::Renewed => "the authority's certificate nears its end, or has not begun",
            Self::Made => "the next authority is published",
            Self::Told => "all are told of the next authority",
            Self::Signs => "the next authority signs",
            Self::Forgotten => "the previous authority is forgotten",
        })
    }
}

impl Rotation {
    /// The first one.
    pub(crate) fn generate(terms: Terms, now: Timestamp) -> Result<Self, rcgen::Error> {
        Ok(Self {
            terms,
            current: terms.generate(now)?,
            next: None,
            previous: None,
            is_damaged: false,
        })
    }

    /// The same key with a new certificate: nobody needs news of it.
    pub(crate) fn renewed(&self, now: Timestamp) -> Result<Self, rcgen::Error> {
        let validity = Validity::days(now, self.terms.days);
        Ok(Self {
            current: self.current.renewed(validity)?,
            ..self.clone()
        })
    }

    /// The next state, and what changes with it; nothing while there is nothing to do. `is_due` is
    /// called only if another authority may be made.
    pub(crate) fn step(
        &self,
        now: Timestamp,
        is_due: impl FnOnce() -> bool,
        trust: Trust,
    ) -> Result<Option<(Self, Change)>, rcgen::Error> {
        let told = trust == Trust::Published;
        let mut after = self.mended(now);
        if after != *self {
            return Ok(Some((after, Change::Mended)));
        }
        let lasts = self.current.lasts_until(now.saturating_add(HURRY).unwrap_or(now));
        if !lasts || !self.current.has_begun(now) {
            return Ok(Some((self.renewed(now)?, Change::Renewed)));
        }
        let is_over = |since: Timestamp, time| now.duration_since(since) >= time;
        let change = match (&self.next, &self.previous) {
            (
                Some(NextAuthority {
                    ca,
                    told: Some(since),
                    ..
                }),
                _,
            ) if told && is_over(*since, ANNOUNCED) => {
                after.next = None;
                if ca.has_begun(now) && ca.lasts_until(now) {
                    after.previous = Some((self.current.cert.clone(), now));
                    after.current = ca.clone();
                    Change::Signs
                } else {
                    // Made by a clock that was wrong.
                    Change::Mended
                }
            }
            (Some(next @ NextAuthority { told: None, .. }), _) if told => {
                after.next = Some(NextAuthority {
                    // The clock that it was made by may be ahead.
                    told: Some(now.max(next.made)),
                    ..next.clone()
                });
                Change::Told
            }
            (_, Some((_, since))) if is_over(*since, REMEMBERED) => {
                after.previous = None;
                Change::Forgotten
            }
            (None, None) if is_due() => {
                after.next = Some(NextAuthority {
                    ca: self.terms.generate(now)?,
                    made: now,
                    told: None,
                });
                Change::Made
            }
            _ => return Ok(None),
        };
        Ok(Some((after, change)))
    }

    /// Without what is damaged, and without times that are far ahead. A replica that is a little
    /// behind must leave the others' times alone: by its own, the day would be over too early for
    /// them.
    fn mended(&self, now: Timestamp) -> Self {
        let credible = now.saturating_add(ANNOUNCED).unwrap_or(now);
        let seen = |time: Timestamp| if time > credible { now } else { time };
        let next = self.next.clone().map(|next| {
            let made = seen(next.made);
            let told = next.told.map(|told| seen(told).max(made));
            NextAuthority { made, told, ..next }
        });
        let previous = self.previous.clone();
        Self {
            next,
            previous: previous.map(|(cert, since)| (cert, since.min(now))),
            is_damaged: false,
            ..self.clone()
        }
    }

    /// What is to be trusted, in PEM.
    pub(crate) fn trusted(&self) -> String {
        let next = self.next.iter().map(|next| &next.ca.cert);
        let previous = self.previous.iter().map(|(cert, _)| cert);
        let all = std::iter::once(&self.current.cert).chain(next).chain(previous);
        all.map(|cert| format!("{}\n", cert.trim_end())).collect()
    }

    /// What is in a Secret's data; the name of what is missing or damaged if nothing can be
    /// signed with it.
    pub(crate) fn from_data(terms: Terms, data: &BTreeMap<String, ByteString>) -> Result<Self, &'static str> {
        let text = |key: &'static str| text(data, key);
        let time = |key: &'static str| text(key)?.parse::<Timestamp>().ok();
        let ca = |cert, key| {
            Some(Ca {
                name: terms.name,
                cert: text(cert)?.to_owned(),
                key: text(key)?.to_owned(),
            })
        };
        let current = Ca {
            name: terms.name,
            cert: text(CA_CERT).ok_or(CA_CERT)?.to_owned(),
            key: text(CA_KEY).ok_or(CA_KEY)?.to_owned(),
        };
        if !is_certificate(&current.cert) {
            return Err(CA_CERT);
        }
        if !current.is_whole() {
            return Err(CA_KEY);
        }
        let next = ca(NEXT_CERT, NEXT_KEY).filter(Ca::is_whole);
        let next = next.zip(time(NEXT_SINCE)).map(|(ca, made)| NextAuthority {
            ca,
            made,
            // One of before it was made is of another, left behind by a version that does not know
            // the key.
            told: time(NEXT_TOLD).filter(|told| *told >= made),
        });
        let previous = text(PREVIOUS_CERT).filter(|cert| is_certificate(cert));
        let previous = previous.map(str::to_owned).zip(time(PREVIOUS_SINCE));
        let is_there = |keys: &[&str]| keys.iter().any(|key| data.contains_key(*key));
        let is_damaged = next.is_none() && is_there(&[NEXT_CERT, NEXT_KEY, NEXT_SINCE, NEXT_TOLD])
            || previous.is_none() && is_there(&[PREVIOUS_CERT, PREVIOUS_SINCE]);
        Ok(Self {
            terms,
            current,
            next,
            previous,
            is_damaged,
        })
    }

    /// Puts it into a Secret's data, in the place of another one. What is not of it there stays.
    pub(crate) fn put(&self, data: &mut BTreeMap<String, ByteString>) {
        let next = self.next.as_ref();
        let previous = self.previous.as_ref();
        let parts = [
            (CA_CERT, Some(self.current.cert.clone())),
            (CA_KEY, Some(self.current.key.clone())),
            (NEXT_CERT, next.map(|next| next.ca.cert.clone())),
            (NEXT_KEY, next.map(|next| next.ca.key.clone())),
            (NEXT_SINCE, next.map(|next| next.made.to_string())),
            (
                NEXT_TOLD,
                next.and_then(|next| next.told).map(|told| told.to_string()),
            ),
            (PREVIOUS_CERT, previous.map(|(cert, _)| cert.clone())),
            (PREVIOUS_SINCE, previous.map(|(_, since)| since.to_string())),
        ];
        for (key, part) in parts {
            match part {
                Some(part) => data.insert(key.to_owned(), ByteString(part.into_bytes())),
                None => data.remove(key),
            };
        }
    }
}

/// A part of a Secret's data that is there, and is text.
pub(crate) fn text<'a>(data: &'a BTreeMap<String, ByteString>, key: &str) -> Option<&'a str> {
    let text = str::from_utf8(&data.get(key)?.0).ok()?;
    Some(text).filter(|text| !text.is_empty())
}
