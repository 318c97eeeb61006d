//! Where OTLP traces go: the flag says it, or else the environment variables that all programs with OpenTelemetry know.

use http::Uri;

use super::SettingsError;

#[cfg(test)]
mod tests;

const FLAG: &str = "--otlp-endpoint";
/// The one of traces alone wins.
const STANDARD: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// A collector that takes OTLP over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// Such as `http://collector:4317`: scheme, host and port, nothing else.
    pub url: String,
    /// The flag or variable that names it.
    pub given_by: &'static str,
}

/// The endpoint of the flag, or that of the first variable that names one. A flag that is there but empty turns traces off whatever the
/// environment says.
///
/// # Errors
/// [`SettingsError::Invalid`] for what is no such URL.
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
    // Credentials belong into OTEL_EXPORTER_OTLP_HEADERS; here they would be sent nowhere and logged.
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
