//! What is counted by its reason.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
}

/// Counters of one name, by reason.
#[derive(Debug, Default)]
pub(crate) struct Reasons(Family<Labels, Counter>);

impl Reasons {
    /// Registers them. Each of `reasons` is there from the beginning, so that the first is seen as a rise.
    pub(crate) fn register(metrics: &Metrics, name: &str, help: &str, reasons: &[&'static str]) -> Self {
        let counters = Family::<Labels, Counter>::default();
        for reason in reasons {
            counters.get_or_create(&Labels { reason }).inc_by(0);
        }
        metrics.register(|registry| registry.register(name, help, counters.clone()));
        Self(counters)
    }

    /// Counts one more.
    pub(crate) fn count(&self, reason: &'static str) {
        self.0.get_or_create(&Labels { reason }).inc();
    }

    /// How many there have been.
    #[cfg(test)]
    pub(crate) fn get(&self, reason: &'static str) -> u64 {
        self.0.get_or_create(&Labels { reason }).get()
    }
}
