//! Calls of the webhooks, counted as in controller-runtime.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The upper bounds of the buckets, in seconds: the defaults of Prometheus' Go client.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Status codes with a series from the start.
const CODES: [u16; 2] = [200, 500];

/// A webhook, by its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    webhook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    webhook: String,
    code: u16,
}

#[derive(Clone, Debug)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

/// Counts calls of webhooks. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct Webhooks {
    answers: Family<AnswerLabels, Counter>,
    in_flight: Family<PathLabels, Gauge>,
    seconds: Family<PathLabels, Histogram, Seconds>,
}

impl Webhooks {
    pub(in crate::telemetry::metrics) fn register(registry: &mut Registry) -> Self {
        let webhooks = Self {
            answers: Family::default(),
            in_flight: Family::default(),
            seconds: Family::new_with_constructor(Seconds),
        };
        registry.register(
            "controller_runtime_webhook_requests",
            "Total number of admission requests by HTTP status code",
            webhooks.answers.clone(),
        );
        registry.register(
            "controller_runtime_webhook_requests_in_flight",
            "Current number of admission requests being served",
            webhooks.in_flight.clone(),
        );
        registry.register(
            "controller_runtime_webhook_latency_seconds",
            "Histogram of the latency of processing admission requests",
            webhooks.seconds.clone(),
        );
        webhooks
    }

    /// Creates the series of the webhook at this path.
    pub(crate) fn served(&self, path: &str) {
        let webhook = path.to_owned();
        for code in CODES {
            let webhook = webhook.clone();
            drop(self.answers.get_or_create(&AnswerLabels { webhook, code }));
        }
        let path = PathLabels { webhook };
        drop(self.in_flight.get_or_create(&path));
        drop(self.seconds.get_or_create(&path));
    }

    /// Starts a call. The returned value is dropped early if the caller leaves before the answer.
    pub(crate) fn called(&self, path: &str) -> Call {
        let path = PathLabels {
            webhook: path.to_owned(),
        };
        self.in_flight.get_or_create(&path).inc();
        Call {
            webhooks: self.clone(),
            path,
            since: Instant::now(),
        }
    }
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Call {
    webhooks: Webhooks,
    path: PathLabels,
    since: Instant,
}

impl Call {
    /// Records the answer.
    pub(crate) fn answered(self, code: u16) {
        let webhook = self.path.webhook.clone();
        let answer = AnswerLabels { webhook, code };
        self.webhooks.answers.get_or_create(&answer).inc();
        let took = self.since.elapsed().as_secs_f64();
        self.webhooks.seconds.get_or_create(&self.path).observe(took);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.webhooks.in_flight.get_or_create(&self.path).dec();
    }
}
