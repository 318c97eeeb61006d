//! Opens the channel to the hub and makes the request with this daemon's credentials. CA and token
//! are read again each time: they may appear late, and they are rotated.

use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use x509_parser::time::ASN1Time;

use super::error::SessionError;
use super::{Hub, trust};

/// Time for the TCP handshake, and for that and TLS and HTTP/2 together.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// A hub that was silent for the first time and does not answer within the second is taken for
/// dead.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Connects to `address` over TLS.
pub(super) async fn channel(hub: &Hub, address: &str) -> Result<Channel, SessionError> {
    let ca = read(&hub.ca_file).await?;
    let ca =
        trust::unexpired(&ca, ASN1Time::now()).ok_or_else(|| SessionError::Expired(hub.ca_file.clone()))?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(&hub.server_name);
    let endpoint = Endpoint::from_shared(address.to_owned())?
        .tls_config(tls)?
        .tcp_nodelay(true)
        .connect_timeout(PATIENCE.0)
        .http2_keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .keep_alive_while_idle(true);
    let connected = timeout(PATIENCE.1, endpoint.connect()).await;
    Ok(connected.map_err(|_| SessionError::Silent)??)
}

/// The request with a token.
pub(super) fn request<S>(token: &str, stream: S) -> Result<Request<S>, SessionError> {
    let mut request = Request::new(stream);
    let value = format!("Bearer {token}").parse();
    let mut value: MetadataValue<Ascii> = value.map_err(|_| SessionError::Token)?;
    value.set_sensitive(true);
    request.metadata_mut().insert("authorization", value);
    Ok(request)
}

/// The token that the file holds now.
pub(super) async fn token(hub: &Hub) -> Result<String, SessionError> {
    Ok(read(&hub.token_file).await?.trim().to_owned())
}

async fn read(path: &Path) -> Result<String, SessionError> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|source| SessionError::File {
            path: path.to_owned(),
            source,
        })
}
