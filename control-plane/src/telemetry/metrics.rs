//! What Prometheus is told.

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

/// JobSets that have ended and are told of. Each has a series, which nobody takes back, and a
/// tenant may make and end any number.
const ENDED: usize = 10_000;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    verb: &'static str,
}

/// What replicas compete for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

/// A certificate that is served.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    certificate: &'static str,
}

/// How a look at a JobSet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// Nothing is left to do, or what was to do is done.
    Done,
    /// Somebody else wrote in between.
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

/// The metrics of the control plane. Parts of it may register more of their own.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    failed: Family<JobSetLabels, Counter>,
    completed: Family<JobSetLabels, Counter>,
    /// Who has a series of these two, the oldest first.
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
            "Looks at JobSets, by how they ended",
            metrics.reconciles.clone(),
        );
        registry.register(
            "lockstep_reconcile_seconds",
            "Time of one look at a JobSet, writes included",
            metrics.reconcile_seconds.clone(),
        );
        registry.register(
            "lockstep_leader",
            "Whether this replica leads: 1, else 0",
            metrics.leader.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "Whether this replica has the Lease of this name: 1, else 0",
            metrics.elected.clone(),
        );
        registry.register_collector(Box::new(upstream::Process));
        registry.register(
            "lockstep_certificate_not_after_seconds",
            "When the certificate that this replica serves with ends, seconds since the Unix epoch",
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

    /// A JobSet has ended, and that is written. Where [`ENDED`] other JobSets have ended for the
    /// first time since it has, it is told of no more.
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
        // Held throughout, so that no series outlives its place here.
        let mut told = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = self.completed.get(&labels).is_none() && self.failed.get(&labels).is_none();
        ended.get_or_create(&labels).inc();
        if !is_new {
            return;
        }
        told.push_back(labels);
        if told.len() > ENDED
            && let Some(oldest) = told.pop_front()
        {
            self.completed.remove(&oldest);
            self.failed.remove(&oldest);
        }
    }

    /// This replica leads from now on, or no longer. `lease` is the name of the Lease that it holds
    /// for that, if any.
    pub(crate) fn leads(&self, leads: bool, lease: Option<&str>) {
        self.leader.set(i64::from(leads));
        if let Some(name) = lease {
            let name = name.to_owned();
            let elected = self.elected.get_or_create(&LeaseLabels { name });
            elected.set(i64::from(leads));
        }
    }

    /// This certificate is served from now on, and ends then, seconds since the Unix epoch.
    pub(crate) fn certificate_ends(&self, certificate: &'static str, at: i64) {
        self.certificates
            .get_or_create(&CertificateLabels { certificate })
            .set(at);
    }

    /// The counter of calls of webhooks.
    pub(crate) fn webhooks(&self) -> Webhooks {
        self.webhooks.clone()
    }

    /// The queue of JobSets.
    pub(crate) fn queue(&self) -> Queue {
        self.queue.clone()
    }

    /// The counter of requests.
    pub(crate) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// A write is being sent.
    pub(crate) fn wrote(&self, kind: &'static str, verb: &'static str) {
        self.writes.get_or_create(&WriteLabels { kind, verb }).inc();
    }

    /// One look at a JobSet has ended. `again`: another follows after a while.
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
    /// If a metric cannot be written as text.
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
    /// Registers them. Each of `reasons` is there from the beginning, so that the first is seen as
    /// a rise.
    pub(crate) fn register(metrics: &Metrics, name: &str, help: &str, reasons: &[&'static str]) -> Self {
        let counters = Family::<ReasonLabels, Counter>::default();
        for reason in reasons {
            counters.get_or_create(&ReasonLabels { reason }).inc_by(0);
        }
        metrics.register(|registry| registry.register(name, help, counters.clone()));
        Self(counters)
    }

    /// Counts one more.
    pub(crate) fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// How many there have been.
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
                // To a String: it cannot fail.
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
