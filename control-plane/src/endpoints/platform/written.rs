//! Why the API server has not written an object.

use kube::Error;
use tonic::Status;

use super::error_details::{CallError, Reason};
use crate::controllers::restart::board::Key;

/// The meaning of a failed write.
pub(super) enum Unwritten {
    /// There is no such object; with the message of the API server.
    Gone(String),
    /// Another client has written first, or it is another object of that name; with the message of
    /// the API server.
    Raced(String),
    /// Any other failure: the answer to the caller.
    Final(Status),
}

/// Why a JobSet was not written.
pub(super) fn why(error: Error, key: &Key) -> Unwritten {
    let refused = |reason, message: String| {
        let refused = CallError::new(reason, message).of_key(key);
        Unwritten::Final(refused.into())
    };
    match error {
        Error::Api(status) => match status.code {
            404 => Unwritten::Gone(status.message),
            409 => Unwritten::Raced(status.message),
            // A webhook or a rule of the CRD, with its reason; or missing permissions of the
            // control plane.
            400 | 403 | 422 => refused(
                Reason::AdmissionRefused,
                format!("the API server refuses the change: {}", status.message),
            ),
            _ => refused(
                Reason::ApiServerUnavailable,
                format!("the API server cannot write the change: {}", status.message),
            ),
        },
        error => refused(
            Reason::ApiServerUnavailable,
            format!("the API server does not answer: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status as ApiStatus;
    use tonic::Code;

    use super::*;

    fn of(code: u16) -> Unwritten {
        let status = ApiStatus::failure("no", "Any").with_code(code).boxed();
        let key = Key {
            namespace: "ours".to_owned(),
            name: "js".to_owned(),
        };
        why(Error::Api(status), &key)
    }

    #[test]
    fn each_code_has_one_meaning() {
        assert!(matches!(of(404), Unwritten::Gone(message) if message == "no"));
        assert!(matches!(of(409), Unwritten::Raced(message) if message == "no"));
        for (codes, meaning, message) in [
            (
                &[400, 403, 422][..],
                Code::FailedPrecondition,
                "refuses the change: no",
            ),
            (
                &[429, 500, 503, 504],
                Code::Unavailable,
                "cannot write the change: no",
            ),
        ] {
            for code in codes {
                let Unwritten::Final(status) = of(*code) else {
                    panic!("{code}");
                };
                assert_eq!(status.code(), meaning, "{code}");
                assert!(status.message().ends_with(message), "{status}");
            }
        }
        let key = Key {
            namespace: "ours".to_owned(),
            name: "js".to_owned(),
        };
        let lost = Error::Service("no connection".into());
        assert!(matches!(why(lost, &key), Unwritten::Final(status) if status.code() == Code::Unavailable));
    }
}
