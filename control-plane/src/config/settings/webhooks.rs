//! How the admission webhooks are served: their address and certificates.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::{SettingsError, non_empty};
use crate::config::file;

const WEBHOOK_PORT: u16 = 9443;
const WEBHOOK_SERVICE: &str = "jobset-webhook-service";
const WEBHOOK_SECRET: &str = "jobset-webhook-server-cert";
/// The directory of externally managed certificates, as in upstream.
const WEBHOOK_CERT_DIR: &str = "/tmp/k8s-webhook-server/serving-certs";
const LONGEST_LABEL: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// The admission webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhooks {
    /// Address to listen on.
    pub address: SocketAddr,
    /// The source of their certificate.
    pub certificates: WebhookCertificates,
}

/// The source of the webhooks' certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookCertificates {
    /// The control plane creates it, stores it in a Secret and informs the API server.
    Managed {
        /// Name of the webhooks' Service.
        service: String,
        /// Name of the Secret.
        secret: String,
    },
    /// Another controller writes tls.crt and tls.key to this directory and informs the API server.
    Directory(PathBuf),
}

/// Combines the flags and the file, with upstream's defaults.
pub(super) fn checked(
    file: file::Webhook,
    certificates: file::InternalCertManagement,
    port: Option<u16>,
    cert_dir: Option<PathBuf>,
) -> Result<Webhooks, SettingsError> {
    let host = match non_empty(file.host).as_deref() {
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        Some("localhost") => IpAddr::from([127, 0, 0, 1]),
        Some(host) => host
            .parse()
            .map_err(|_| SettingsError::invalid("webhook.host", format!("{host:?} is not an IP address")))?,
    };
    let certificates = match cert_dir {
        Some(dir) => WebhookCertificates::Directory(dir),
        None if certificates.enable.unwrap_or(true) => {
            let service = non_empty(certificates.webhook_service_name);
            let secret = non_empty(certificates.webhook_secret_name);
            let service = service.unwrap_or_else(|| WEBHOOK_SERVICE.to_owned());
            let secret = secret.unwrap_or_else(|| WEBHOOK_SECRET.to_owned());
            service_name(&service).map_err(|message| {
                SettingsError::invalid("internalCertManagement.webhookServiceName", message)
            })?;
            secret_name(&secret).map_err(|message| {
                SettingsError::invalid("internalCertManagement.webhookSecretName", message)
            })?;
            WebhookCertificates::Managed { service, secret }
        }
        None => {
            let dir = non_empty(file.cert_dir).unwrap_or_else(|| WEBHOOK_CERT_DIR.to_owned());
            WebhookCertificates::Directory(PathBuf::from(dir))
        }
    };
    Ok(Webhooks {
        address: SocketAddr::new(host, port.or(file.port).unwrap_or(WEBHOOK_PORT)),
        certificates,
    })
}

/// Checks an RFC 1035 label, with the messages of Kubernetes.
fn service_name(name: &str) -> Result<(), String> {
    if name.len() > LONGEST_LABEL {
        return Err(format!("{name:?} must be no more than 63 characters"));
    }
    if is_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(format!(
        "{name:?}: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and \
         end with an alphanumeric character"
    ))
}

/// Checks an RFC 1123 subdomain.
fn secret_name(name: &str) -> Result<(), String> {
    if name.len() > LONGEST_SUBDOMAIN {
        return Err(format!("{name:?} must be no more than 253 characters"));
    }
    if name.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!(
        "{name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end \
         with an alphanumeric character"
    ))
}

fn is_label(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(fits) && text.ends_with(fits) && text.chars().all(|c| fits(c) || c == '-')
}
