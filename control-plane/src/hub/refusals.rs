//! Refused peers, and why: each refusal is counted, and logged once an hour. Agents that daemons
//! report to have refused are counted as well.

#[cfg(test)]
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;

use crate::telemetry::log_limit::HourlyLimit;
use crate::telemetry::metrics::{Metrics, Reasons};

/// The reasons for refusals.
const REASONS: [&str; 45] = [
    "silent",
    "ended",
    "no_hello",
    "protocol",
    "oversized",
    "malformed",
    "second_hello",
    "unknown_message",
    "no_token",
    "token_too_long",
    "malformed_token",
    "algorithm",
    "unknown_key",
    "signature",
    "issuer",
    "audience",
    "expired",
    "not_yet_valid",
    "subject",
    "no_node",
    "revoked",
    "other_node",
    "overdue",
    "no_keys",
    "higher_epoch",
    "impossible_epoch",
    "foreign_pod",
    "other_worker",
    "impossible_generation",
    "impossible_counter",
    "incomplete_worker",
    "long_name",
    "too_many_workers",
    "other_group",
    "other_namespace",
    "too_many_connections",
    "crowded_out",
    "plain_text",
    "certificate",
    "tls",
    "slow_handshake",
    "not_http2",
    "http2",
    "flood",
    "unknown_client",
];

/// Counts and logs refusals.
#[derive(Default)]
pub struct Refusals {
    counts: Reasons,
    agents: Counter,
    log_limit: HourlyLimit<(String, &'static str)>,
    /// The reason of each line in the log.
    #[cfg(test)]
    lines: Mutex<Vec<&'static str>>,
}

impl Refusals {
    /// Registers the metrics.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let refusals = Self {
            counts: Reasons::register(
                metrics,
                "lockstep_hub_refusals",
                "Connections, streams, tokens and reports of node daemons that the hub has refused or ended, by reason",
                &REASONS,
            ),
            ..Self::default()
        };
        metrics.register(|registry| {
            registry.register(
                "lockstep_agent_refusals",
                "Connections of pod agents that node daemons have refused since they started, as the daemons report",
                refusals.agents.clone(),
            );
        });
        refusals
    }

    /// Notes a refusal. `who` is the node if it has authenticated, or else the address of the peer.
    pub(crate) fn note(&self, who: &str, reason: &'static str, error: &dyn std::error::Error) {
        if self.log_limit.is_new((who.to_owned(), reason)) {
            #[cfg(test)]
            self.lines
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(reason);
            tracing::warn!(who, reason, %error, "a node daemon was refused");
        }
        self.counts.count(reason);
    }

    /// Counts further agents that a daemon has refused. The daemon's log names them.
    pub(super) fn agents(&self, more: u32) {
        self.agents.inc_by(more.into());
    }

    #[cfg(test)]
    pub(crate) fn count(&self, reason: &'static str) -> u64 {
        self.counts.get(reason)
    }

    #[cfg(test)]
    pub(crate) fn agents_refused(&self) -> u64 {
        self.agents.get()
    }

    /// Lines in the log with this reason.
    #[cfg(test)]
    pub(crate) fn logged(&self, reason: &'static str) -> usize {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| **line == reason).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::log_limit::QUIET;

    #[tokio::test(start_paused = true)]
    async fn each_refusal_is_counted_and_logged_once_an_hour() {
        let refusals = Refusals::default();
        let note = |who, reason| refusals.note(who, reason, &std::fmt::Error);
        note("10.0.0.1", "expired");
        note("10.0.0.1", "expired");
        assert_eq!((refusals.count("expired"), refusals.logged("expired")), (2, 1));
        note("10.0.0.1", "signature");
        note("10.0.0.2", "expired");
        assert_eq!((refusals.logged("signature"), refusals.logged("expired")), (1, 2));
        tokio::time::advance(QUIET).await;
        note("10.0.0.1", "expired");
        assert_eq!((refusals.count("expired"), refusals.logged("expired")), (4, 3));
    }

    /// The texts in the functions that name reasons.
    #[test]
    fn every_reason_is_there_from_the_beginning() {
        let of = |code: &str| -> Vec<String> {
            let bodies = code.split("fn reason(").skip(1);
            let bodies = bodies.map(|rest| rest.split("\n    }\n").next().unwrap());
            let texts = bodies.flat_map(|body| body.split('"').skip(1).step_by(2));
            texts.map(str::to_owned).collect()
        };
        let files = [
            include_str!("protocol.rs"),
            include_str!("auth.rs"),
            include_str!("epoch_tracker.rs"),
            include_str!("registry/link.rs"),
            include_str!("report_limits.rs"),
            include_str!("../net/tls/connection_limit.rs"),
        ];
        let named: Vec<String> = files.into_iter().flat_map(of).collect();
        assert_eq!(named, REASONS);
        let metrics = Metrics::default();
        let _refusals = Refusals::register(&metrics);
        let text = metrics.encode().unwrap();
        assert!(
            text.contains("lockstep_hub_refusals_total{reason=\"expired\"} 0"),
            "{text}"
        );
    }
}
