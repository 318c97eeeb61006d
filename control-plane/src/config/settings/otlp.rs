//! The destination of OTLP traces: the flag, or else OpenTelemetry's standard environment
//! variables.

use http::Uri;

use super::SettingsError;

const FLAG: &str = "--otlp-endpoint";
/// The variable that is only for traces takes precedence.
const STANDARD: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// A collector that takes OTLP over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// The URL, such as `http://collector:4317`: scheme, host and port, nothing else.
    pub url: String,
    /// The flag or variable that names it.
    pub given_by: &'static str,
}

/// The endpoint of the flag, or of the first variable that is set. An empty flag disables traces
/// regardless of the environment.
///
/// # Errors
/// [`SettingsError::Invalid`] if the URL is invalid.
pub(super) fn endpoint(
    flag: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<OtlpEndpoint>, SettingsError> {
    let flag = flag.map(|url| (FLAG, url));
    let given = flag.or_else(|| {
        STANDARD
            .into_iter()
            .find_map(|name| Some((name, variable(name).filter(|url| !url.is_empty())?)))
    });
    let Some((given_by, url)) = given.filter(|(_, url)| !url.is_empty()) else {
        return Ok(None);
    };
    check(&url).map_err(|message| SettingsError::invalid(given_by, message))?;
    Ok(Some(OtlpEndpoint { url, given_by }))
}

fn check(url: &str) -> Result<(), String> {
    let example = "it must be like http://collector:4317";
    let uri: Uri = url
        .parse()
        .map_err(|error| format!("{url:?} is not a URL ({error}); {example}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(format!(
            "{url:?} begins neither with http:// nor with https://; {example}"
        ));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(format!("{url:?} names no host; {example}"));
    }
    // Credentials belong in OTEL_EXPORTER_OTLP_HEADERS; in the URL they would be logged and not
    // sent.
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(format!("a user name or password cannot be part of it; {example}"));
    }
    if uri.path().len() > 1 || uri.query().is_some() {
        return Err(format!(
            "{url:?} has a path, as endpoints of OTLP over HTTP do; traces are sent over gRPC; {example}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
    fn traces_are_off_by_default() {
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
        // Empty is an answer too.
        assert_eq!(of(Some(""), &[traces, all]), Ok(None));
    }

    #[test]
    fn a_mistake_is_reported_with_its_field() {
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
        /// What is accepted, tonic accepts too.
        #[test]
        fn any_text_is_refused_or_can_be_connected_to(url in "(https?://)?\\PC{0,24}") {
            if let Ok(Some((url, _))) = of(Some(&url), &[]) {
                prop_assert!(tonic::transport::Endpoint::from_shared(url).is_ok());
            }
        }
    }
}
