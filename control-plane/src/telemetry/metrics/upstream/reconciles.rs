//! Reconciles of JobSets, counted as in controller-runtime.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::telemetry::metrics::Outcome;

/// Name of the controller of JobSets.
const CONTROLLER: &str = "jobset";
/// Results, as controller-runtime names them.
const ERROR: &str = "error";
const REQUEUE: &str = "requeue";
const REQUEUE_AFTER: &str = "requeue_after";
const SUCCESS: &str = "success";
/// The upper bounds of controller-runtime's buckets, in seconds.
const BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug)]
pub(in crate::telemetry::metrics) struct Reconciles {
    total: Family<ResultLabels, Counter>,
    errors: Counter,
    seconds: Histogram,
}

impl Reconciles {
    pub(in crate::telemetry::metrics) fn register(registry: &mut Registry) -> Self {
        let reconciles = Self {
            total: Family::default(),
            errors: Counter::default(),
            seconds: Histogram::new(BUCKETS),
        };
        for result in [ERROR, REQUEUE, REQUEUE_AFTER, SUCCESS] {
            drop(reconciles.total.get_or_create(&ResultLabels { result }));
        }
        let registry = registry.sub_registry_with_label(("controller".into(), CONTROLLER.into()));
        registry.register(
            "controller_runtime_reconcile",
            "Total number of reconciliations per controller",
            reconciles.total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Total number of reconciliation errors per controller",
            reconciles.errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Length of time per reconciliation per controller",
            reconciles.seconds.clone(),
        );
        reconciles
    }

    /// Counts a finished reconcile. `again`: another one follows later.
    pub(in crate::telemetry::metrics) fn add(&self, outcome: Outcome, again: bool, took: Duration) {
        let result = match outcome {
            Outcome::Failed => ERROR,
            // It is decided again, which is no error.
            Outcome::Conflict => REQUEUE,
            Outcome::Done if again => REQUEUE_AFTER,
            Outcome::Done => SUCCESS,
        };
        self.total.get_or_create(&ResultLabels { result }).inc();
        if outcome == Outcome::Failed {
            self.errors.inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }
}
