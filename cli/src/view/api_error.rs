//! Errors of the platform API for people: its message, with the flags of this program in place of
//! its fields, and what to do.

use std::time::Duration;

use tonic::Status;
use tonic_types::StatusExt as _;

/// The domain of Lockstep's reasons. Reasons of other domains are ignored.
const DOMAIN: &str = "lockstep.dev";
/// Fields of requests and the flags that fill them. Longer names come before their prefixes.
const FLAGS: [(&str, &str); 6] = [
    ("only.replicated_job", "--replicated-job"),
    ("only.worker", "--worker"),
    ("only.job", "--job"),
    // The message names the workers.
    ("only", ""),
    ("namespace", "--namespace"),
    ("name", ""),
];

/// The reason for programs; empty if there is none.
pub(crate) fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.filter(|info| info.domain == DOMAIN)
        .map(|info| info.reason)
        .unwrap_or_default()
}

/// The delay before a retry, if a retry on the same connection may help.
pub(crate) fn retry_delay(status: &Status) -> Option<Duration> {
    // Another replica leads, so this connection does not help.
    if matches!(reason(status).as_str(), "NOT_LEADING" | "SHUTTING_DOWN") {
        return None;
    }
    status.get_details_retry_info()?.retry_delay
}

/// The error for people.
pub(crate) fn words(status: &Status) -> String {
    let message = in_flags(status);
    match reason(status).as_str() {
        "TOKEN_MISSING" | "TOKEN_UNKNOWN" => {
            format!("{message} (give another with --token or --service-account)")
        }
        "TOO_MANY_WATCHES" | "TOO_MANY_DRY_RUNS" | "TOO_MANY_CALLERS" | "API_SERVER_UNAVAILABLE" => {
            match status.get_details_retry_info().and_then(|info| info.retry_delay) {
                Some(delay) => format!("{message}; try again in {} s", delay.as_secs().max(1)),
                None => message,
            }
        }
        _ => message,
    }
}

/// The message, with a flag in place of a field at its beginning.
fn in_flags(status: &Status) -> String {
    let message = status.message();
    let info = status.get_details_error_info();
    let field = info.and_then(|mut info| info.metadata.remove("field"));
    let rest = field
        .as_deref()
        .or(message.starts_with("name: ").then_some("name"))
        .and_then(|field| Some((field, message.strip_prefix(field)?.strip_prefix(": ")?)));
    let Some((field, rest)) = rest else {
        return message.to_owned();
    };
    match FLAGS.iter().find(|(path, _)| field.starts_with(path)) {
        Some((_, "")) => rest.to_owned(),
        Some((_, flag)) => format!("{flag}: {rest}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    fn status(reason: &str, message: &str, field: Option<&str>, again: Option<Duration>) -> Status {
        let metadata: HashMap<_, _> = field
            .map(|field| ("field".to_owned(), field.to_owned()))
            .into_iter()
            .collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        if let Some(again) = again {
            details.set_retry_info(Some(again));
        }
        Status::with_error_details(Code::Unknown, message, details)
    }

    #[test]
    fn fields_are_replaced_by_the_flags_that_fill_them() {
        for (field, message, expected) in [
            ("only.job", "only.job: has no Job x", "--job: has no Job x"),
            (
                "only.replicated_job",
                "only.replicated_job: must be a name",
                "--replicated-job: must be a name",
            ),
            (
                "only.worker.container",
                "only.worker.container: must be a name",
                "--worker: must be a name",
            ),
            ("name", "name: is required", "is required"),
            ("only", "only: the workers run in step", "the workers run in step"),
        ] {
            assert_eq!(
                words(&status("INVALID_FIELD", message, Some(field), None)),
                expected
            );
        }
        let missing = status("JOBSET_NOT_FOUND", "name: there is no JobSet js", None, None);
        assert_eq!(words(&missing), "there is no JobSet js");
    }

    #[test]
    fn an_error_says_what_to_do() {
        let unknown = words(&status("TOKEN_UNKNOWN", "it is not accepted", None, None));
        assert_eq!(
            unknown,
            "it is not accepted (give another with --token or --service-account)"
        );
        let many = status(
            "TOO_MANY_DRY_RUNS",
            "more than 8",
            None,
            Some(Duration::from_secs(3)),
        );
        assert_eq!(words(&many), "more than 8; try again in 3 s");
        assert_eq!(retry_delay(&many), Some(Duration::from_secs(3)));
        let follower = status("NOT_LEADING", "does not lead", None, Some(Duration::from_secs(1)));
        assert_eq!(
            (words(&follower).as_str(), retry_delay(&follower)),
            ("does not lead", None)
        );
    }

    #[test]
    fn an_error_from_elsewhere_is_unchanged() {
        let plain = Status::unavailable("broken pipe");
        assert_eq!(
            (words(&plain).as_str(), retry_delay(&plain)),
            ("broken pipe", None)
        );
        let details = ErrorDetails::with_error_info("TOKEN_UNKNOWN", "example.com", HashMap::new());
        let other = Status::with_error_details(Code::Unauthenticated, "no", details);
        assert_eq!(words(&other), "no");
    }
}
