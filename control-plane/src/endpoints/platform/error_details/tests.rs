use std::collections::BTreeSet;

use super::*;

#[test]
fn each_code_has_the_details_that_it_is_documented_with() {
    for reason in Reason::ALL {
        let refused = CallError::new(reason, "name: no")
            .of("ours", "js")
            .with("field", "name");
        let status = Status::from(refused);
        assert_eq!((status.code(), status.message()), (reason.code(), "name: no"));
        let details = status.check_error_details().unwrap();
        let info = details.error_info().unwrap();
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            (reason.name(), DOMAIN)
        );
        assert_eq!(info.metadata["namespace"], "ours");
        assert_eq!(info.metadata["jobset"], "js");

        let is_invalid = status.code() == Code::InvalidArgument;
        assert_eq!(details.has_bad_request_violations(), is_invalid, "{reason:?}");
        let is_precondition = status.code() == Code::FailedPrecondition;
        assert_eq!(details.has_precondition_failure_violations(), is_precondition);
        let passes = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
        let told = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(
            told.is_some(),
            passes || reason == Reason::RequestPending,
            "{reason:?}"
        );
        assert!(told.is_none_or(|delay| !delay.is_zero()));
    }
}

#[test]
fn every_reason_is_documented_and_every_documented_one_is_there() {
    let proto = include_str!("../../../../../proto/lockstep/platform/v1/platform.proto");
    let listed = proto.split_once("// Reasons").unwrap().1;
    let listed = listed.split_once("\n//\n").unwrap().0;
    let mut code = "";
    let mut documented = BTreeSet::new();
    for line in listed.lines().filter(|line| line.starts_with("//   ")) {
        let mut rest = &line["//   ".len()..];
        if !rest.starts_with(' ') {
            (code, rest) = rest.split_once(' ').unwrap();
        }
        let words = rest.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
        documented.extend(words.filter(|word| word.contains('_')).map(|word| (code, word)));
    }
    let all = Reason::ALL.map(|reason| (spelt(reason.code()), reason.name()));
    assert_eq!(documented, all.into());
}

fn spelt(code: Code) -> &'static str {
    match code {
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        other => panic!("{other:?} is not for us"),
    }
}

#[test]
fn a_field_is_named_by_its_path_and_its_fault_is_described_once() {
    let status = Status::from(CallError::field("only.worker.job", "must be a name"));
    assert_eq!(status.message(), "only.worker.job: must be a name");
    let details = status.get_error_details();
    let violations = &details.bad_request().unwrap().field_violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].field, "only.worker.job");
    assert_eq!(violations[0].description, "must be a name");
}

#[test]
fn a_precondition_names_its_object() {
    let status = Status::from(CallError::new(Reason::JobsetEnded, "it has ended").of("ours", "js"));
    let details = status.get_error_details();
    let violation = &details.precondition_failure().unwrap().violations[0];
    assert_eq!(
        (violation.r#type.as_str(), violation.subject.as_str()),
        ("JOBSET_ENDED", "jobsets.jobset.x-k8s.io/ours/js")
    );
    assert_eq!(violation.description, "it has ended");
}

#[test]
fn however_long_a_webhook_speaks_clients_can_read_the_status() {
    let long = "é".repeat(100_000);
    let status = Status::from(CallError::new(Reason::AdmissionRefused, long).of("ours", "js"));
    let headers = status.into_http::<()>().headers().clone();
    let size: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    assert!(size < 8 * 1024, "{size} bytes");
}
