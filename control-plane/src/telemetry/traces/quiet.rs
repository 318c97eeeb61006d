//! An exporter that does not log each failure: an unreachable collector would fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// How long no further failure is logged.
const SILENCE: Duration = Duration::from_secs(60);

/// Wraps an exporter.
#[derive(Debug)]
pub(super) struct QuietExporter<E> {
    exporter: E,
    lost: Mutex<UnsentSpans>,
}

/// Spans that were not sent.
#[derive(Debug, Default)]
pub(super) struct UnsentSpans {
    logged_at: Option<Instant>,
    unlogged: usize,
}

impl UnsentSpans {
    /// Adds spans; returns how many to log now, if any.
    pub(super) fn add(&mut self, spans: usize, now: Instant) -> Option<usize> {
        self.unlogged += spans;
        if self.logged_at.is_some_and(|at| now.duration_since(at) < SILENCE) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl<E> QuietExporter<E> {
    pub(super) fn new(exporter: E) -> Self {
        Self {
            exporter,
            lost: Mutex::default(),
        }
    }
}

impl<E: SpanExporter> SpanExporter for QuietExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        if let Err(error) = &result {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(spans) = lost.add(spans, Instant::now()) {
                tracing::warn!(%error, spans, "trace spans lost, the collector did not accept them");
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
