//! What the platform API says without a token.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::caller::channel;

const PLATFORM: &str = "lockstep.platform.v1.Platform";

/// Its health, of the server and of the service.
pub(super) async fn health_is(address: SocketAddr, ca: &str, expected: ServingStatus) -> Result<()> {
    let mut health = HealthClient::new(channel(address, ca));
    for service in ["", PLATFORM] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let said = health.check(request).await?.into_inner().status();
        ensure!(said == expected, "{service:?}: {said:?}");
    }
    Ok(())
}

/// As grpcurl asks.
pub(super) async fn it_describes_itself(address: SocketAddr, ca: &str) -> Result<()> {
    let ask = |message| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(PLATFORM.to_owned())),
    ];
    let mut answers = ServerReflectionClient::new(channel(address, ca))
        .server_reflection_info(tokio_stream::iter(questions))
        .await?
        .into_inner();
    let listed = answers.message().await?.context("no services")?.message_response;
    let Some(MessageResponse::ListServicesResponse(listed)) = listed else {
        anyhow::bail!("{listed:?}")
    };
    ensure!(
        listed.service.iter().any(|service| service.name == PLATFORM),
        "{listed:?}"
    );
    let file = answers.message().await?.context("no file")?.message_response;
    ensure!(
        matches!(&file, Some(MessageResponse::FileDescriptorResponse(file)) if file.file_descriptor_proto.len() == 1),
        "{file:?}"
    );
    Ok(())
}
