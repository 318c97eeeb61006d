//! Services without authentication: health (`grpc.health.v1`) tells if this replica leads, and
//! reflection (`grpc.reflection`) describes the API.
//!
//! Promises: they reveal nothing about JobSets, cause no requests to the API server, and have at
//! most [`MAX_STREAMS`] open streams each. A client that takes all streams blocks only the streams
//! of these two services: a `Check` of the health is not a stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::platform_server::PlatformServer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};
use tonic_reflection::server::{Builder, Error, v1, v1alpha};
use tower::Service;

use super::error_details::{CallError, Reason};
use super::service::PlatformService;
use crate::controllers::restart::board::Board;

/// Streams of each of the two services at the same time, over all callers.
const MAX_STREAMS: usize = 64;
/// How long a client of the reflection may keep asking.
const REFLECTION_TIMEOUT: Duration = Duration::from_secs(60);

fn permit(streams: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    Arc::clone(streams).try_acquire_owned().map_err(|_| {
        let message = format!("more than {MAX_STREAMS} streams of this service at once");
        let refused = CallError::new(Reason::TooManyStreams, message);
        refused.with("limit", MAX_STREAMS.to_string()).into()
    })
}

/// Serves `grpc.health.v1.Health`.
pub(super) struct Health {
    board: Arc<Board>,
    shutdown: CancellationToken,
    streams: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(board: Arc<Board>, shutdown: CancellationToken) -> Self {
        Self {
            board,
            shutdown,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }
}

/// True for the server as a whole, and for its main service.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == PlatformServer::<PlatformService>::NAME
}

fn status(leads: bool, ends: bool) -> ServingStatus {
    if leads && !ends {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

type Statuses = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            let message = "service: is not served here";
            let refused = CallError::new(Reason::ServiceNotFound, message);
            return Err(refused.with("field", "service").into());
        }
        let status = status(self.board.is_leading(), self.shutdown.is_cancelled());
        Ok(Response::new(response(status)))
    }

    type WatchStream = Statuses;

    /// The status now, and again when it changes. By the protocol, an unknown service is not an
    /// error here.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watching = Watching {
            known: is_known(&request.get_ref().service),
            leading: self.board.subscribe_leading(),
            shutdown: self.shutdown.clone(),
            sent: None,
            _board: Arc::clone(&self.board),
            _permit: permit(&self.streams)?,
        };
        let statuses = futures::stream::unfold(watching, |mut watching| async move {
            let status = watching.next().await?;
            Some((Ok(response(status)), watching))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}

/// A watch of the health.
struct Watching {
    known: bool,
    leading: watch::Receiver<bool>,
    shutdown: CancellationToken,
    sent: Option<ServingStatus>,
    /// Keeps the board alive, so that there is always another change to wait for.
    _board: Arc<Board>,
    _permit: OwnedSemaphorePermit,
}

impl Watching {
    /// The next status; `None` at the shutdown. Cancel-safe.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            let (leads, ends) = (*self.leading.borrow_and_update(), self.shutdown.is_cancelled());
            let status = if self.known {
                status(leads, ends)
            } else {
                ServingStatus::ServiceUnknown
            };
            if self.sent != Some(status) {
                self.sent = Some(status);
                return Some(status);
            }
            if ends {
                return None;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                changed = self.leading.changed() => changed.ok()?,
            }
        }
    }
}

type Reflection<V1, V1Alpha> = (
    Bounded<v1::ServerReflectionServer<V1>>,
    Bounded<v1alpha::ServerReflectionServer<V1Alpha>>,
);

/// Serves `grpc.reflection.v1.ServerReflection`, and the older v1alpha that many tools still use.
/// Requests have at most `largest_request` bytes.
///
/// # Errors
/// If a compiled-in description cannot be read.
pub(super) fn reflection(
    shutdown: &CancellationToken,
    largest_request: usize,
) -> Result<Reflection<impl v1::ServerReflection, impl v1alpha::ServerReflection>, Error> {
    let described = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that tools such as grpcurl can read the details of errors.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    let v1 = described().build_v1()?.max_decoding_message_size(largest_request);
    let v1alpha = described()
        .build_v1alpha()?
        .max_decoding_message_size(largest_request);
    Ok((
        Bounded {
            inner: v1,
            streams: Arc::clone(&streams),
            shutdown: shutdown.clone(),
        },
        Bounded {
            inner: v1alpha,
            streams,
            shutdown: shutdown.clone(),
        },
    ))
}

/// A service whose streams are limited in number and in time.
#[derive(Clone)]
pub(super) struct Bounded<S> {
    inner: S,
    streams: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

type Answer = http::Response<Body>;

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = Answer, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let permit = match permit(&self.streams) {
            Ok(permit) => permit,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        let shutdown = self.shutdown.clone();
        // The request ends then, as if the caller had no more questions, so the service ends the
        // stream.
        let over = async move {
            shutdown
                .run_until_cancelled(tokio::time::sleep(REFLECTION_TIMEOUT))
                .await
        };
        let request = request.map(|body| {
            let frames = BodyStream::new(body).take_until(Box::pin(over));
            Body::new(StreamBody::new(frames))
        });
        let answered = self.inner.call(request);
        Box::pin(async move {
            let answer = answered.await?;
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    // It lives as long as the stream.
                    let _ = &permit;
                    frame
                }))
            }))
        })
    }
}
