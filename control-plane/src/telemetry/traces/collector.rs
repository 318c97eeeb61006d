//! A collector on the loopback interface, for tests.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::config::settings::OtlpEndpoint;

/// A collector that records its requests.
pub(crate) struct Collector {
    pub(crate) endpoint: OtlpEndpoint,
    received: mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
}

struct Service(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The endpoint at this port of the loopback interface.
pub(crate) fn endpoint(port: u16) -> OtlpEndpoint {
    OtlpEndpoint {
        url: format!("http://127.0.0.1:{port}"),
        given_by: "--otlp-endpoint",
    }
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = endpoint(listener.local_addr().unwrap().port());
        let (sender, received) = mpsc::unbounded_channel();
        let server =
            tonic::transport::Server::builder().add_service(TraceServiceServer::new(Service(sender)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { endpoint, received }
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> ExportTraceServiceRequest {
        self.received.recv().await.unwrap()
    }

    /// True if there was no further request.
    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }
}

/// Attributes as text, in the order of their names.
pub(crate) fn plain(attributes: &[KeyValue]) -> Vec<(&str, String)> {
    let text = |value: &KeyValue| match value.value.clone().unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let mut plain: Vec<_> = attributes
        .iter()
        .map(|pair| (pair.key.as_str(), text(pair)))
        .collect();
    plain.sort();
    plain
}
