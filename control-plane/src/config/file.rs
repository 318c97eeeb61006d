//! The file of `--config`: upstream's Configuration (config.jobset.x-k8s.io/v1alpha1).
//!
//! Promises: an unknown field, or a value of the wrong type, is refused with a message that names
//! the field. Absent fields stay unset here; [`crate::config::settings`] applies the defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_api::duration::parse_duration;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::config::args::BindAddress;

#[cfg(test)]
mod tests;

const API_VERSION: &str = "config.jobset.x-k8s.io/v1alpha1";
const KIND: &str = "Configuration";

/// Why the file is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config {file}: {error}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The file is invalid.
    #[error("--config {file}: {error}")]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The mistake and its position.
        error: serde_yaml_ng::Error,
    },
    /// The file holds another kind of object.
    #[error("--config {file}: this is a {kind:?} of {api_version:?}, not a {KIND:?} of {API_VERSION:?}")]
    OtherKind {
        /// The file.
        file: PathBuf,
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
}

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Configuration {
    api_version: String,
    kind: String,
    /// Admission webhooks.
    pub webhook: Option<Webhook>,
    /// Election of the leader.
    pub leader_election: Option<LeaderElection>,
    /// The metrics endpoint.
    pub metrics: Option<Metrics>,
    /// The health endpoints.
    pub health: Option<Health>,
    /// TLS of all endpoints.
    pub tls: Option<Tls>,
    /// Certificates of the webhooks.
    pub internal_cert_management: Option<InternalCertManagement>,
    /// Rate limits for requests to the API server.
    pub client_connection: Option<ClientConnection>,
    /// Features to enable or disable.
    pub feature_gates: Option<BTreeMap<String, bool>>,
}

/// `webhook`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// Port to listen on.
    pub port: Option<u16>,
    /// Address to listen on, empty for all interfaces.
    pub host: Option<String>,
    /// Directory with tls.crt and tls.key.
    pub cert_dir: Option<String>,
}

/// `leaderElection`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaderElection {
    /// True if replicas elect a leader.
    pub leader_elect: Option<bool>,
    /// How long a lease lasts without renewal.
    #[serde(default, deserialize_with = "duration")]
    pub lease_duration: Option<Duration>,
    /// How long failed renewals are retried.
    #[serde(default, deserialize_with = "duration")]
    pub renew_deadline: Option<Duration>,
    /// Time between attempts.
    #[serde(default, deserialize_with = "duration")]
    pub retry_period: Option<Duration>,
    /// `leases`.
    pub resource_lock: Option<String>,
    /// Name of the Lease.
    pub resource_name: Option<String>,
    /// Namespace of the Lease.
    pub resource_namespace: Option<String>,
}

/// `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Address to listen on.
    #[serde(default, deserialize_with = "address")]
    pub bind_address: Option<BindAddress>,
    /// Directory with tls.crt and tls.key.
    pub cert_dir: Option<String>,
}

/// `health`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Health {
    /// Address to listen on.
    #[serde(default, deserialize_with = "address")]
    pub health_probe_bind_address: Option<BindAddress>,
    /// Path of the readiness endpoint.
    pub readiness_endpoint_name: Option<String>,
    /// Path of the liveness endpoint.
    pub liveness_endpoint_name: Option<String>,
}

/// `tls`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// `VersionTLS12` or `VersionTLS13`.
    pub min_version: Option<String>,
    /// The suites of TLS 1.2 that are offered, by their names in Go.
    pub cipher_suites: Option<Vec<String>>,
}

/// `internalCertManagement`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InternalCertManagement {
    /// True if the control plane makes the webhooks' certificates.
    pub enable: Option<bool>,
    /// Name of the webhooks' Service.
    pub webhook_service_name: Option<String>,
    /// Name of the Secret that the certificates are kept in.
    pub webhook_secret_name: Option<String>,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientConnection {
    /// Requests per second of each kind; 0, a negative number or NaN means no limit.
    pub qps: Option<f32>,
    /// The burst of each kind; at least one.
    pub burst: Option<i32>,
}

impl Configuration {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConfigError`] if the file cannot be read, or is not a Configuration of this version.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Unreadable {
            file: file.to_owned(),
            error,
        })?;
        let read: Self = serde_yaml_ng::from_str(&text).map_err(|error| ConfigError::Malformed {
            file: file.to_owned(),
            error,
        })?;
        if read.kind == KIND && read.api_version == API_VERSION {
            return Ok(read);
        }
        Err(ConfigError::OtherKind {
            file: file.to_owned(),
            kind: read.kind,
            api_version: read.api_version,
        })
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserializer.deserialize_option(Parsed(|text| match parse_duration(text) {
        Ok(duration) => Ok(Some(duration)),
        Err(error) => Err(format!("{text:?} is not a duration: {error}")),
    }))
}

/// As in upstream, an empty address counts as none.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BindAddress>, D::Error> {
    deserializer.deserialize_option(Parsed(|text| {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some)
    }))
}

/// Parses a string during deserialization, so that an error names its field.
struct Parsed<T>(fn(&str) -> Result<Option<T>, String>);

impl<'de, T> Visitor<'de> for Parsed<T> {
    type Value = Option<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        (self.0)(text).map_err(E::custom)
    }
}
