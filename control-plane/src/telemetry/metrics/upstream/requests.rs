//! Requests to the API server: sent and answered.

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SentLabels {
    method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnsweredLabels {
    code: String,
    method: String,
    host: String,
}

/// Counts requests to the API server. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    sent: Family<SentLabels, Counter>,
    answered: Family<AnsweredLabels, Counter>,
}

impl Requests {
    pub(in crate::telemetry::metrics) fn register(registry: &mut Registry) -> Self {
        let requests = Self::default();
        registry.register(
            "lockstep_api_requests",
            "Requests of the control plane to the API server, watches included",
            requests.sent.clone(),
        );
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host",
            requests.answered.clone(),
        );
        requests
    }

    /// Counts a request that is being sent.
    pub(crate) fn sent(&self, method: &Method) {
        let method = method.to_string();
        self.sent.get_or_create(&SentLabels { method }).inc();
    }

    /// Counts an answer with this status, or a failure without one.
    pub(crate) fn answered(&self, method: &Method, host: &str, status: Option<StatusCode>) {
        let labels = AnsweredLabels {
            code: status.map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned()),
            method: method.to_string(),
            host: host.to_owned(),
        };
        self.answered.get_or_create(&labels).inc();
    }
}
