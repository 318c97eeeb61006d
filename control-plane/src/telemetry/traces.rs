//! Traces: OTLP over gRPC to a collector, if one is configured.
//!
//! Promises: without a collector there is no thread, no connection and no memory for traces. With
//! one, a task that creates spans never waits: spans that cannot be sent in time are dropped, and
//! the log says so at most once a minute.

mod quiet;

use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tonic::transport::ClientTlsConfig;

use crate::config::settings::OtlpEndpoint;
use quiet::QuietExporter;

#[cfg(test)]
pub(crate) mod collector;
#[cfg(test)]
mod tests;

/// The name of the service and of its tracer.
const SERVICE: &str = "lockstep-control-plane";
/// The most spans that wait to be sent: about 100 restarts.
const BACKLOG: usize = 1024;
/// The most spans that are sent at once.
const BATCH: usize = 256;
/// How long spans wait to be sent in a batch.
const DELAY: Duration = Duration::from_secs(2);
/// How long the shutdown waits for the last spans to be sent.
const LONGEST_END: Duration = Duration::from_secs(2);

/// The destination of spans, if any.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Export>);

#[derive(Clone, Debug)]
struct Export {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Exports to this collector, or nowhere. Call this within a tokio runtime. It connects with
    /// the first spans.
    ///
    /// # Errors
    /// The endpoint, or one of the standard environment variables, is invalid.
    pub fn to(endpoint: Option<&OtlpEndpoint>) -> anyhow::Result<Self> {
        let Some(endpoint) = endpoint else {
            return Ok(Self::default());
        };
        let (url, given_by) = (&endpoint.url, endpoint.given_by);
        let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(url);
        if url.starts_with("https:") {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter = exporter.build().with_context(|| format!("{given_by}: {url}"))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(BACKLOG)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let processor = BatchSpanProcessor::builder(QuietExporter::new(exporter))
            .with_batch_config(batches)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource())
            .build();
        let tracer = provider.tracer(SERVICE);
        tracing::info!(url, given_by, "exporting traces of restarts");
        Ok(Self(Some(Export { provider, tracer })))
    }

    /// The tracer, if there is a collector.
    #[must_use]
    pub fn tracer(&self) -> Option<&SdkTracer> {
        self.0.as_ref().map(|export| &export.tracer)
    }

    /// Sends the waiting spans, for a short time at most, and ends the export. Later spans are
    /// dropped.
    pub async fn end(self) {
        let Some(Export { provider, .. }) = self.0 else {
            return;
        };
        let end = move || provider.shutdown_with_timeout(LONGEST_END);
        match tokio::task::spawn_blocking(end).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last traces were not sent"),
            Err(error) => tracing::warn!(%error, "the last traces were not sent"),
        }
    }
}

/// The origin of the spans. `OTEL_RESOURCE_ATTRIBUTES` adds to it, such as the name of the cluster.
fn resource() -> Resource {
    let instance = std::env::var("POD_NAME").ok();
    Resource::builder()
        .with_service_name(SERVICE)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(instance.map(|pod| KeyValue::new("service.instance.id", pod)))
        .build()
}
