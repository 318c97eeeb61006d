//! The metrics for Prometheus. `charts/metrics_test.py` lists the labels of each.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use lockstep_api::{JobSet, TerminalState};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

mod upstream;

pub(crate) use upstream::{Queue, Requests, Webhooks};

#[cfg(test)]
mod tests;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of [`Metrics::encode_plain`].
pub const PLAIN_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A JobSet, as upstream labels it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobSetLabels {
    jobset_name: String,
    namespace: String,
}

/// How many ended JobSets have a series. A series stays until another one replaces it, and tenants
/// may create any number of JobSets.
const ENDED: usize = 10_000;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    verb: &'static str,
}

/// The Lease that replicas compete for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

/// A served certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    certificate: &'static str,
}

/// The result of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// Everything is done.
    Done,
    /// Another client wrote in between.
    Conflict,
    /// Something failed.
    Failed,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Done, Self::Conflict, Self::Failed];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    result: Outcome,
}

/// The metrics of the control plane. Other parts may register their own.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    failed: Family<JobSetLabels, Counter>,
    completed: Family<JobSetLabels, Counter>,
    /// The JobSets with a series of these two, the oldest first.
    ended: Mutex<VecDeque<JobSetLabels>>,
    writes: Family<WriteLabels, Counter>,
    requests: Requests,
    reconciles: Family<OutcomeLabels, Counter>,
    reconcile_seconds: Histogram,
    leader: Gauge,
    elected: Family<LeaseLabels, Gauge>,
    certificates: Family<CertificateLabels, Gauge>,
    upstream: upstream::Reconciles,
    queue: Queue,
    webhooks: Webhooks,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            registry: Mutex::default(),
            failed: Family::default(),
            completed: Family::default(),
            ended: Mutex::default(),
            writes: Family::default(),
            requests: Requests::register(&mut registry),
            reconciles: Family::default(),
            reconcile_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            leader: Gauge::default(),
            elected: Family::default(),
            certificates: Family::default(),
            upstream: upstream::Reconciles::register(&mut registry),
            queue: Queue::register(&mut registry),
            webhooks: Webhooks::register(&mut registry),
        };
        registry.register(
            "jobset_failed",
            "The total number of failed JobSets",
            metrics.failed.clone(),
        );
        registry.register(
            "jobset_completed",
            "The total number of completed JobSets",
            metrics.completed.clone(),
        );
        registry.register(
            "lockstep_api_writes",
            "Writes of the reconciler to the API server",
            metrics.writes.clone(),
        );
        registry.register(
            "lockstep_reconciles",
            "Reconciles of JobSets, by result",
            metrics.reconciles.clone(),
        );
        registry.register(
            "lockstep_reconcile_seconds",
            "Duration of one reconcile of a JobSet, writes included",
            metrics.reconcile_seconds.clone(),
        );
        registry.register(
            "lockstep_leader",
            "1 if this replica leads, else 0",
            metrics.leader.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "1 if this replica holds the Lease of this name, else 0",
            metrics.elected.clone(),
        );
        registry.register_collector(Box::new(upstream::Process));
        registry.register(
            "lockstep_certificate_not_after_seconds",
            "Expiry of the certificate that this replica serves, in seconds since the Unix epoch",
            metrics.certificates.clone(),
        );
        for result in Outcome::ALL {
            metrics
                .reconciles
                .get_or_create(&OutcomeLabels { result })
                .inc_by(0);
        }
        Self {
            registry: Mutex::new(registry),
            ..metrics
        }
    }
}

impl Metrics {
    /// Lets another part of the control plane register metrics.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a JobSet whose end is written. Its series are removed once [`ENDED`] other JobSets
    /// have ended for the first time.
    pub(crate) fn finished(&self, jobset: &JobSet, state: &TerminalState) {
        let ended = match state {
            TerminalState::Completed => &self.completed,
            TerminalState::Failed => &self.failed,
            TerminalState::Other(_) => return,
        };
        let labels = JobSetLabels {
            jobset_name: jobset.name().to_owned(),
            namespace: jobset.ns().to_owned(),
        };
        // Locked throughout, so that no series outlives its entry here.
        let mut counted = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = self.completed.get(&labels).is_none() && self.failed.get(&labels).is_none();
        ended.get_or_create(&labels).inc();
        if !is_new {
            return;
        }
        counted.push_back(labels);
        if counted.len() > ENDED
            && let Some(oldest) = counted.pop_front()
        {
            self.completed.remove(&oldest);
            self.failed.remove(&oldest);
        }
    }

    /// Records that this replica leads. `lease` is the name of the Lease that it holds for it, if
    /// any.
    pub(crate) fn leads(&self, lease: Option<&str>) {
        self.set_leader(1, lease);
    }

    /// Records that this replica does not lead. `lease` is the Lease that it would hold for it.
    pub(crate) fn follows(&self, lease: Option<&str>) {
        self.set_leader(0, lease);
    }

    fn set_leader(&self, value: i64, lease: Option<&str>) {
        self.leader.set(value);
        if let Some(name) = lease {
            let name = name.to_owned();
            self.elected.get_or_create(&LeaseLabels { name }).set(value);
        }
    }

    /// Records the expiry of a served certificate, in seconds since the Unix epoch.
    pub(crate) fn certificate_ends(&self, certificate: &'static str, at: i64) {
        self.certificates
            .get_or_create(&CertificateLabels { certificate })
            .set(at);
    }

    /// The metrics of webhook calls.
    pub(crate) fn webhooks(&self) -> Webhooks {
        self.webhooks.clone()
    }

    /// The metrics of the queue of JobSets.
    pub(crate) fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// The metrics of requests to the API server.
    pub(crate) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// Counts a write that is being sent.
    pub(crate) fn wrote(&self, kind: &'static str, verb: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind, verb }).inc();
    }

    /// Counts a finished reconcile of a JobSet. `again`: another one follows later.
    pub(crate) fn reconciled(&self, result: Outcome, again: bool, took: Duration) {
        self.upstream.add(result, again, took);
        self.reconciles.get_or_create(&OutcomeLabels { result }).inc();
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// All metrics in Prometheus' older text format.
    ///
    /// # Errors
    /// As [`Metrics::encode`].
    pub fn encode_plain(&self) -> Result<String, std::fmt::Error> {
        self.encode().map(|text| to_plain(&text))
    }

    /// All metrics in OpenMetrics text.
    ///
    /// # Errors
    /// A metric cannot be encoded.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(
            &mut text,
            &self.registry.lock().unwrap_or_else(PoisonError::into_inner),
        )?;
        Ok(text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Counters of one name, by reason.
#[derive(Debug, Default)]
pub(crate) struct Reasons(Family<ReasonLabels, Counter>);

impl Reasons {
    /// Registers the counters. Each of `reasons` starts at 0, so that the first event shows as a
    /// rise.
    pub(crate) fn register(metrics: &Metrics, name: &str, help: &str, reasons: &[&'static str]) -> Self {
        let counters = Family::<ReasonLabels, Counter>::default();
        for reason in reasons {
            counters.get_or_create(&ReasonLabels { reason }).inc_by(0);
        }
        metrics.register(|registry| registry.register(name, help, counters.clone()));
        Self(counters)
    }

    /// Counts one event.
    pub(crate) fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// The current count.
    #[cfg(test)]
    pub(crate) fn get(&self, reason: &'static str) -> u64 {
        self.0.get_or_create(&ReasonLabels { reason }).get()
    }
}

/// Converts OpenMetrics text into Prometheus' older format: a counter has the name of its samples,
/// and there are no units and no end marker.
fn to_plain(open: &str) -> String {
    let mut plain = String::with_capacity(open.len() + 1024);
    let mut counters = HashSet::new();
    for line in open.lines() {
        if let Some((name, "counter")) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            counters.insert(name);
        }
    }
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(text)) => {
                let suffix = if counters.contains(name) { "_total" } else { "" };
                let text = match (what, text) {
                    ("TYPE", "unknown") => "untyped",
                    ("TYPE", "info" | "stateset") => "gauge",
                    (_, text) => text,
                };
                // Writing to a String cannot fail.
                let _ = writeln!(plain, "# {what} {name}{suffix} {text}");
            }
            (Some("#"), ..) => {}
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}
