//! The TLS versions and cipher suites of the endpoints.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::ResolvesServerCert;
use rustls::{CipherSuite, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::SettingsError;
use crate::config::file;

static TLS12_UP: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];
static TLS13: [&SupportedProtocolVersion; 1] = [&version::TLS13];

/// The versions and cipher suites that a server of the control plane offers.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    versions: &'static [&'static SupportedProtocolVersion],
    provider: Arc<CryptoProvider>,
}

impl TlsOptions {
    /// Selects versions and suites by their names in Go, as upstream does.
    pub(super) fn new(options: &file::Tls) -> Result<Self, SettingsError> {
        let suites = options.cipher_suites.as_deref().unwrap_or_default();
        let min_version = options.min_version.as_deref().unwrap_or_default();
        let versions: &'static [_] = match min_version {
            "" | "VersionTLS12" => &TLS12_UP,
            "VersionTLS13" => &TLS13,
            old @ ("VersionTLS10" | "VersionTLS11") => {
                let message = format!(
                    "invalid minVersion: {old} is not supported. Please use VersionTLS12 or VersionTLS13"
                );
                return Err(SettingsError::invalid("tls.minVersion", message));
            }
            unknown => {
                let message = format!(
                    "invalid minVersion: unknown tls version {unknown:?}. Please use VersionTLS12 or VersionTLS13"
                );
                return Err(SettingsError::invalid("tls.minVersion", message));
            }
        };
        if min_version == "VersionTLS13" && !suites.is_empty() {
            return Err(SettingsError::invalid(
                "tls.cipherSuites",
                "may not be specified when `minVersion` is 'VersionTLS13'",
            ));
        }
        let mut provider = ring::default_provider();
        if !suites.is_empty() {
            let chosen = suites.iter().map(|name| suite(&provider, name));
            let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
            // As in Go, the suites of TLS 1.3 cannot be selected.
            provider
                .cipher_suites
                .retain(|suite| is_tls13(suite) || chosen.contains(&suite.suite()));
        }
        Ok(Self {
            versions,
            provider: Arc::new(provider),
        })
    }

    /// A configuration for an HTTP/1.1 server whose certificate may change.
    ///
    /// # Errors
    /// The versions and cipher suites are incompatible.
    pub fn server(&self, certificate: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let mut config = builder
            .with_protocol_versions(self.versions)?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn is_tls13(suite: &SupportedCipherSuite) -> bool {
    suite.version() == &version::TLS13
}

/// Finds a cipher suite by its name in Go.
fn suite(provider: &CryptoProvider, name: &str) -> Result<CipherSuite, SettingsError> {
    let known = |suite: &SupportedCipherSuite| go_names(suite).iter().any(|known| known == name);
    if let Some(suite) = provider.cipher_suites.iter().find(|suite| known(suite)) {
        return Ok(suite.suite());
    }
    let names = provider.cipher_suites.iter().filter(|suite| !is_tls13(suite));
    let names: Vec<String> = names.flat_map(go_names).collect();
    Err(SettingsError::invalid(
        "tls.cipherSuites",
        format!(
            "invalid cipher suites: {name} is not supported. Please use the secure cipher names: {}",
            names.join(", ")
        ),
    ))
}

/// Go's names of a suite: Go omits the hash in some names, and 13 in those of TLS 1.3.
fn go_names(suite: &SupportedCipherSuite) -> Vec<String> {
    let name = suite
        .suite()
        .as_str()
        .unwrap_or_default()
        .replacen("TLS13_", "TLS_", 1);
    let short = name
        .strip_suffix("_POLY1305_SHA256")
        .map(|start| format!("{start}_POLY1305"));
    std::iter::once(name).chain(short).collect()
}
