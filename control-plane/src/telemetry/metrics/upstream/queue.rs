//! The queue of JobSets, measured as client-go measures its work queues.
//!
//! The queue itself is kube's. This module tracks when a JobSet was enqueued or is to be retried,
//! and when a reconcile starts and ends. Nothing is guessed: an item that was not seen being
//! enqueued has no time in the queue.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[cfg(test)]
mod tests;

/// The name of the queue of JobSets and of its controller.
const NAME: &str = "jobset";

/// Which JobSet.
type Key = ObjectRef<JobSet>;

/// The metrics of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    items: Arc<Mutex<Items<Key>>>,
    adds: Counter,
    retries: Counter,
    queue_seconds: Histogram,
    work_seconds: Histogram,
}

impl Queue {
    pub(in crate::telemetry::metrics) fn register(registry: &mut Registry) -> Self {
        // From 10 ns to 1000 s, as in client-go.
        let buckets = || exponential_buckets(1e-8, 10.0, 12);
        let queue = Self {
            items: Arc::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            queue_seconds: Histogram::new(buckets()),
            work_seconds: Histogram::new(buckets()),
        };
        let labels = ["controller", "name"].map(|label| (label.into(), NAME.into()));
        let registry = registry.sub_registry_with_labels(labels.into_iter());
        registry.register(
            "workqueue_adds",
            "Total number of adds handled by workqueue",
            queue.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Total number of retries handled by workqueue",
            queue.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
            queue.queue_seconds.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes",
            queue.work_seconds.clone(),
        );
        registry.register_collector(Box::new(Levels(Arc::clone(&queue.items))));
        queue
    }

    fn lock(&self) -> MutexGuard<'_, Items<Key>> {
        // Nothing that holds this lock can leave it half-changed.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this JobSet changed.
    pub(crate) fn named(&self, key: &Key) {
        if self.lock().named(key, Instant::now()) {
            self.adds.inc();
        }
    }

    /// Records that the JobSet is reconciled again after this time.
    pub(crate) fn again(&self, key: &Key, after: Duration) {
        if let Some(at) = Instant::now().checked_add(after) {
            self.lock().again(key, at);
        }
    }

    /// Records a retry after a failed reconcile.
    pub(crate) fn retry(&self, key: &Key, after: Duration) {
        self.retries.inc();
        self.again(key, after);
    }

    /// Starts a reconcile, which ends when the returned value is dropped.
    pub(crate) fn begin(&self, key: Key) -> InProgress<'_> {
        self.taken(&key);
        let begun = Instant::now();
        self.lock().working.insert(key.clone(), begun);
        InProgress {
            queue: self,
            key,
            begun,
        }
    }

    /// Records that the JobSet left the queue, to be reconciled or because it is gone.
    pub(crate) fn taken(&self, key: &Key) {
        let now = Instant::now();
        let Some(waited) = self.lock().waiting.remove(key) else {
            return;
        };
        if !waited.counted {
            self.adds.inc();
        }
        let waited = now.saturating_duration_since(waited.due);
        self.queue_seconds.observe(waited.as_secs_f64());
    }
}

/// A reconcile in progress.
pub(crate) struct InProgress<'q> {
    queue: &'q Queue,
    key: Key,
    begun: Instant,
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.queue.lock().working.remove(&self.key);
        self.queue
            .work_seconds
            .observe(self.begun.elapsed().as_secs_f64());
    }
}

/// The waiting items and the items in progress.
#[derive(Debug)]
struct Items<K> {
    waiting: HashMap<K, Waiting>,
    /// The start of each reconcile.
    working: HashMap<K, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When it becomes due.
    due: Instant,
    /// True if it is counted in `adds`.
    counted: bool,
}

impl<K> Default for Items<K> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            working: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Clone> Items<K> {
    /// Enqueues an item. True if it was not in the queue, which holds each item at most once.
    fn named(&mut self, key: &K, now: Instant) -> bool {
        let waits = self.waiting.get(key);
        let is_add = waits.is_none_or(|waiting| waiting.due > now);
        if is_add {
            let waiting = Waiting {
                due: now,
                counted: true,
            };
            self.waiting.insert(key.clone(), waiting);
        }
        is_add
    }

    /// Schedules an item unless it is scheduled already.
    fn again(&mut self, key: &K, at: Instant) {
        let new = Waiting {
            due: at,
            counted: false,
        };
        self.waiting.entry(key.clone()).or_insert(new);
    }

    /// How many items are due and not in progress.
    fn depth(&self, now: Instant) -> usize {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due <= now);
        due.filter(|(key, _)| !self.working.contains_key(key)).count()
    }

    /// The sum and the maximum of the running times of items in progress.
    fn unfinished(&self, now: Instant) -> (Duration, Duration) {
        let taken = self
            .working
            .values()
            .map(|begun| now.saturating_duration_since(*begun));
        taken.fold((Duration::ZERO, Duration::ZERO), |(sum, longest), taken| {
            (sum + taken, longest.max(taken))
        })
    }
}

/// Values that are computed at each scrape.
#[derive(Debug)]
struct Levels(Arc<Mutex<Items<Key>>>);

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let now = Instant::now();
        let (depth, (unfinished, longest)) = {
            let items = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (items.depth(now), items.unfinished(now))
        };
        let gauges = [
            ("workqueue_depth", "Current depth of workqueue", depth as f64),
            (
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has been done that is in progress and hasn't been observed by work_duration",
                unfinished.as_secs_f64(),
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running",
                longest.as_secs_f64(),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}
