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

/// Limit for the TCP handshake.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the handshakes of TCP, TLS and HTTP/2 together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two keepalive pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A hub that does not answer a keepalive ping within this time counts as dead.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

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
        .connect_timeout(TCP_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connected = timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
    Ok(connected.map_err(|_| SessionError::Silent)??)
}

/// A request that carries the token.
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
