//! Refused callers of the platform API. Each refusal is counted, and logged once an hour, since
//! anyone who reaches the port can call as often as they like.

use prometheus_client::metrics::counter::Counter;

use super::authorize::Refusal;
use crate::telemetry::log_limit::HourlyLimit;
use crate::telemetry::metrics::{Metrics, Reasons};

/// The reasons for refusals.
const REASONS: [&str; 4] = ["no_token", "unknown_token", "denied", "no_api_server"];

/// How the API server names a ServiceAccount as a user: then its namespace, a colon, and its name.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Counts and logs refused calls.
#[derive(Default)]
pub(super) struct RefusalLog {
    counts: Reasons,
    crowds: Counter,
    /// Callers that the API server does not know, by address and reason.
    unknown: HourlyLimit<(String, &'static str)>,
    /// Callers that it knows, by [user](user_or_namespace) and verb. Unknown callers cannot use up
    /// their lines.
    users: HourlyLimit<(String, &'static str)>,
    /// Limits the line about addresses that call too often.
    crowd: HourlyLimit<()>,
    /// Lines in the log.
    #[cfg(test)]
    lines: std::sync::atomic::AtomicUsize,
}

impl RefusalLog {
    /// Registers the metrics.
    pub(super) fn register(metrics: &Metrics) -> Self {
        let refusal_log = Self {
            counts: Reasons::register(
                metrics,
                "lockstep_platform_refusals",
                "Calls of the platform API whose caller was refused, by reason",
                &REASONS,
            ),
            ..Self::default()
        };
        metrics.register(|registry| {
            registry.register(
                "lockstep_platform_crowded_out",
                "Calls of the platform API that were refused because too many from the same address waited to be checked",
                refusal_log.crowds.clone(),
            );
        });
        refusal_log
    }

    #[cfg(test)]
    fn line(&self) {
        self.lines.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Notes a refusal of a caller at this address.
    pub(super) fn note(&self, address: &str, refusal: &Refusal) {
        let Some(reason) = reason(refusal) else {
            self.crowds.inc();
            if self.crowd.is_new(()) {
                #[cfg(test)]
                self.line();
                tracing::warn!(
                    address,
                    all = self.crowds.get(),
                    "too many calls of the platform API from one address wait to be checked; further calls are refused"
                );
            }
            return;
        };
        self.counts.count(reason);
        let (hides, is_new) = match refusal {
            Refusal::Denied { user, verb, .. } => {
                let user = user_or_namespace(user);
                (user, self.users.is_new((user.to_owned(), *verb)))
            }
            _ => (address, self.unknown.is_new((address.to_owned(), reason))),
        };
        if is_new {
            #[cfg(test)]
            self.line();
            let cause = std::error::Error::source(refusal).map(ToString::to_string);
            tracing::warn!(
                address,
                reason,
                error = %refusal,
                cause,
                hides,
                "a caller of the platform API was refused; for an hour, others like it are not logged"
            );
        }
    }
}

/// The user, or the namespace of a ServiceAccount. A tenant may create any number of
/// ServiceAccounts, so all of a namespace count as one user.
fn user_or_namespace(user: &str) -> &str {
    let Some(account) = user.strip_prefix(SERVICE_ACCOUNT) else {
        return user;
    };
    let namespace = account.find(':').unwrap_or(account.len());
    &user[..SERVICE_ACCOUNT.len() + namespace]
}

/// The reason in metrics; `None` for calls that were not even checked.
fn reason(refusal: &Refusal) -> Option<&'static str> {
    match refusal {
        Refusal::Missing => Some("no_token"),
        Refusal::Unknown => Some("unknown_token"),
        Refusal::Denied { .. } => Some("denied"),
        Refusal::Unavailable(_) => Some("no_api_server"),
        Refusal::TooMany => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(user: &str, verb: &'static str) -> Refusal {
        Refusal::Denied {
            user: user.to_owned(),
            verb,
            location: String::new(),
        }
    }

    #[tokio::test]
    async fn a_caller_that_repeats_its_call_is_counted_and_fills_no_log() {
        let metrics = Metrics::default();
        let refusal_log = RefusalLog::register(&metrics);
        for _ in 0..500 {
            refusal_log.note("10.0.0.1", &Refusal::Missing);
            refusal_log.note("10.0.0.1", &denied("jane", "list"));
            refusal_log.note("10.0.0.2", &denied("jane", "patch"));
            refusal_log.note("10.0.0.2", &Refusal::TooMany);
        }
        let text = metrics.encode().unwrap();
        for line in [
            "lockstep_platform_refusals_total{reason=\"no_token\"} 500",
            "lockstep_platform_refusals_total{reason=\"unknown_token\"} 0",
            "lockstep_platform_refusals_total{reason=\"denied\"} 1000",
            "lockstep_platform_crowded_out_total 500",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(refusal_log.lines.into_inner(), 4);
    }

    #[tokio::test]
    async fn unknown_callers_leave_room_for_users() {
        let refusal_log = RefusalLog::default();
        for stranger in 0..10_000 {
            refusal_log.note(&format!("10.0.{stranger}"), &Refusal::Unknown);
        }
        let lines = || refusal_log.lines.load(std::sync::atomic::Ordering::Relaxed);
        let before = lines();
        refusal_log.note("10.0.no-place", &Refusal::Unknown);
        assert_eq!(lines(), before);
        refusal_log.note("10.0.no-place", &denied("jane", "list"));
        assert_eq!(lines(), before + 1);
    }

    #[tokio::test]
    async fn the_service_accounts_of_a_namespace_count_as_one_user() {
        let refusal_log = RefusalLog::default();
        for account in 0..5_000 {
            let user = format!("system:serviceaccount:tenant:a{account}");
            refusal_log.note("10.0.0.1", &denied(&user, "list"));
        }
        for user in [
            "system:serviceaccount:neighbour:a",
            "system:serviceaccount:",
            "jane",
        ] {
            refusal_log.note("10.0.0.1", &denied(user, "list"));
        }
        assert_eq!(refusal_log.lines.into_inner(), 4);
    }

    /// The texts in the function that names reasons.
    #[test]
    fn every_reason_is_there_from_the_beginning() {
        let code = include_str!("audit.rs");
        let body = code.split("fn reason(").nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        let named: Vec<&str> = body.split('"').skip(1).step_by(2).collect();
        assert_eq!(named, REASONS);
        let metrics = Metrics::default();
        let _refusal_log = RefusalLog::register(&metrics);
        let text = metrics.encode().unwrap();
        for reason in REASONS {
            let line = format!("lockstep_platform_refusals_total{{reason=\"{reason}\"}} 0");
            assert!(text.contains(&line), "{text}");
        }
    }
}
