//! Answers that need no token.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

use super::*;

const PLATFORM: &str = "lockstep.platform.v1.Platform";

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.into(),
    }
}

fn wish(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    }
}

/// A stream of questions, which stays open until the sender is dropped.
async fn asking(
    channel: Channel,
) -> Result<
    (
        mpsc::Sender<ServerReflectionRequest>,
        Streaming<ServerReflectionResponse>,
    ),
    Status,
> {
    let (ask, questions) = mpsc::channel(4);
    let answers = ServerReflectionClient::new(channel)
        .server_reflection_info(ReceiverStream::new(questions))
        .await?;
    Ok((ask, answers.into_inner()))
}

async fn answer(channel: Channel, message: MessageRequest) -> Result<MessageResponse, Status> {
    let (ask, mut answers) = asking(channel).await?;
    ask.send(wish(message)).await.unwrap();
    let answer = answers.message().await?.unwrap();
    Ok(answer.message_response.unwrap())
}

#[tokio::test]
async fn health_tells_everybody_whether_this_replica_leads() {
    let api = Api::start().await;
    let mut health = HealthClient::new(api.channel.clone());
    for service in ["", PLATFORM] {
        let said = health.check(of(service)).await.unwrap().into_inner();
        assert_eq!(said.status(), ServingStatus::NotServing, "{service}");
    }
    let mut watch = health.watch(of(PLATFORM)).await.unwrap().into_inner();
    let said = watch.message().await.unwrap().unwrap();
    assert_eq!(said.status(), ServingStatus::NotServing);

    api.board.set_leading();
    let said = watch.message().await.unwrap().unwrap();
    assert_eq!(said.status(), ServingStatus::Serving);
    for service in ["", PLATFORM] {
        let said = health.check(of(service)).await.unwrap().into_inner();
        assert_eq!(said.status(), ServingStatus::Serving, "{service}");
    }

    let other = of("lockstep.node.v1.NodeHub");
    let status = health.check(other.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let mut unknown = health.watch(other).await.unwrap().into_inner();
    let said = unknown.message().await.unwrap().unwrap();
    assert_eq!(said.status(), ServingStatus::ServiceUnknown);

    api.shutdown.cancel();
    let said = watch.message().await.unwrap().unwrap();
    assert_eq!(said.status(), ServingStatus::NotServing);
    assert_eq!(watch.message().await.unwrap(), None);
}

#[tokio::test]
async fn reflection_shows_the_platform_api_with_its_comments_and_nothing_else_of_ours() {
    let api = Api::start().await;
    let listed = answer(api.channel.clone(), MessageRequest::ListServices(String::new())).await;
    let Ok(MessageResponse::ListServicesResponse(listed)) = listed else {
        panic!("{listed:?}")
    };
    let mut names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            PLATFORM
        ]
    );
    let symbol = MessageRequest::FileContainingSymbol(format!("{PLATFORM}.RestartGroup"));
    let file = answer(api.channel.clone(), symbol).await;
    let Ok(MessageResponse::FileDescriptorResponse(file)) = file else {
        panic!("{file:?}")
    };
    let text = String::from_utf8_lossy(&file.file_descriptor_proto[0]).into_owned();
    assert!(
        text.contains("restarts all workers of a group in place, once per token"),
        "{text}"
    );
    let details = MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".into());
    let file = answer(api.channel.clone(), details).await;
    assert!(
        matches!(file, Ok(MessageResponse::FileDescriptorResponse(_))),
        "{file:?}"
    );
    let hub = MessageRequest::FileContainingSymbol("lockstep.node.v1.NodeHub".into());
    let status = answer(api.channel.clone(), hub).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn older_tools_find_it_too() {
    let api = Api::start().await;
    let question = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(PLATFORM.into()),
        ),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(api.channel.clone());
    let mut answers = client
        .server_reflection_info(tokio_stream::iter([question]))
        .await
        .unwrap()
        .into_inner();
    assert!(answers.message().await.unwrap().is_some());
    // The stream ends after the last question.
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn so_many_streams_are_open_at_once_and_no_more() {
    let api = Api::leading().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(asking(api.channel.clone()).await.unwrap());
    }
    let other = api.endpoint.connect().await.unwrap();
    let Err(status) = asking(other.clone()).await else {
        panic!("one too many is served")
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let mut health = HealthClient::new(other.clone());
    let said = health.check(of("")).await.unwrap().into_inner();
    assert_eq!(said.status(), ServingStatus::Serving);

    open.pop();
    let until_free = async {
        while asking(other.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, until_free).await.unwrap();
}

#[tokio::test]
async fn an_open_stream_does_not_keep_the_server_from_ending() {
    let api = Api::start().await;
    let reflection = asking(api.channel.clone()).await.unwrap();
    api.shutdown.cancel();
    tokio::time::timeout(PATIENCE, api.server)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    drop((api.channel, reflection));
}

#[tokio::test]
async fn one_client_keeps_so_many_connections_and_no_more() {
    let api = Api::leading().await;
    // The stream of the test is one of them.
    let mut kept = Vec::new();
    for _ in 1..256 {
        kept.push(api.endpoint.connect().await.unwrap());
    }
    let mut one_too_many = Box::pin(api.endpoint.connect());
    let waited = tokio::time::timeout(Duration::from_secs(1), &mut one_too_many).await;
    assert!(waited.is_err(), "it waits for its place: {waited:?}");
    // Open ones are served meanwhile, with or without a token, and one that ends makes room.
    let mut health = HealthClient::new(kept[0].clone());
    health.check(of("")).await.unwrap();
    drop(kept.pop());
    tokio::time::timeout(PATIENCE, one_too_many)
        .await
        .unwrap()
        .unwrap();
}
