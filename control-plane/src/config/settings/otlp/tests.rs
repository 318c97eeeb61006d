use proptest::prelude::*;

use super::*;

fn of(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<(String, &'static str)>, String> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    endpoint(flag.map(str::to_owned), variable)
        .map(|endpoint| endpoint.map(|endpoint| (endpoint.url, endpoint.given_by)))
        .map_err(|error| error.to_string())
}

fn given(url: &str, by: &'static str) -> Result<Option<(String, &'static str)>, String> {
    Ok(Some((url.to_owned(), by)))
}

#[test]
fn traces_are_off_unless_somebody_asks_for_them() {
    assert_eq!(of(None, &[]), Ok(None));
    assert_eq!(of(Some(""), &[]), Ok(None));
    let empty = [(STANDARD[0], ""), (STANDARD[1], "")];
    assert_eq!(of(None, &empty), Ok(None));
}

#[test]
fn the_flag_wins_over_the_standard_variables_and_that_of_traces_over_that_of_all() {
    let (traces, all) = ((STANDARD[0], "https://t:1"), (STANDARD[1], "http://a:2/"));
    assert_eq!(of(Some("http://f"), &[traces, all]), given("http://f", FLAG));
    assert_eq!(of(None, &[traces, all]), given("https://t:1", STANDARD[0]));
    assert_eq!(of(None, &[all]), given("http://a:2/", STANDARD[1]));
    // An empty value counts too.
    assert_eq!(of(Some(""), &[traces, all]), Ok(None));
}

#[test]
fn a_mistake_is_reported_by_the_name_of_what_has_it() {
    for (url, says) in [
        ("collector:4317", "neither with http:// nor with https://"),
        ("grpc://collector:4317", "neither with http:// nor with https://"),
        ("http://", "not a URL"),
        ("http://:4317", "host"),
        ("a b", "not a URL"),
        ("http://collector:4318/v1/traces", "over gRPC"),
        ("http://collector:4317?x=1", "over gRPC"),
        ("http://me:secret@collector:4317", "password"),
    ] {
        let error = of(Some(url), &[]).unwrap_err();
        assert!(error.starts_with("--otlp-endpoint: "), "{error}");
        assert!(
            error.contains(says) && error.contains("http://collector:4317"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
        let error = of(None, &[(STANDARD[1], url)]).unwrap_err();
        assert!(error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{error}");
    }
}

proptest! {
    /// tonic accepts every accepted URL.
    #[test]
    fn any_text_is_refused_or_can_be_connected_to(url in "(https?://)?\\PC{0,24}") {
        if let Ok(Some((url, _))) = of(Some(&url), &[]) {
            prop_assert!(tonic::transport::Endpoint::from_shared(url).is_ok());
        }
    }
}
