//! Makes the channel and the request.

use std::path::Path;
use std::time::Duration;

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::{Config, LinkError};

/// A peer that is silent for this long, and then for as long again as the second, is taken for dead.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Connects to `address` over TLS.
pub(super) async fn channel(config: &Config, address: &str) -> Result<Channel, LinkError> {
    let ca = read("CA certificate", &config.ca_file).await?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(config.server_name.clone());
    let refused = |error: tonic::transport::Error| LinkError::Transport {
        address: address.to_owned(),
        error: chain(&error).into(),
    };
    let endpoint: Endpoint = Channel::from_shared(address.to_owned())
        .map_err(|error| LinkError::Invalid(format!("address {address:?}: {error}")))?
        .tls_config(tls)
        .map_err(refused)?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .keep_alive_while_idle(true);
    endpoint.connect().await.map_err(refused)
}

/// The request with this daemon's credentials.
pub(super) async fn request<S>(config: &Config, stream: S) -> Result<Request<S>, LinkError> {
    let token = read("token", &config.token_file).await?;
    let value = |what: &str, text: String| {
        text.parse::<MetadataValue<Ascii>>()
            .map_err(|_| LinkError::Invalid(format!("{what} has characters that a header cannot hold")))
    };
    let mut request = Request::new(stream);
    request.metadata_mut().insert("authorization", value("the token", format!("Bearer {}", token.trim()))?);
    request.metadata_mut().insert("lockstep-node", value("the node's name", config.node.clone())?);
    Ok(request)
}

async fn read(what: &'static str, path: &Path) -> Result<String, LinkError> {
    tokio::fs::read_to_string(path).await.map_err(|error| LinkError::File {
        what,
        path: path.display().to_string(),
        error,
    })
}

/// An error with its causes: tonic's own text is no more than "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
