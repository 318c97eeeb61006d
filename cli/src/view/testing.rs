//! Objects for tests.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The current time of tests.
pub(crate) fn now() -> Timestamp {
    "2026-03-01T03:00:00Z".parse().unwrap()
}

/// A time before [`now`].
pub(crate) fn before(seconds: i64) -> Timestamp {
    now() - jiff::SignedDuration::from_secs(seconds)
}

/// An object as the API server sends it.
pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
