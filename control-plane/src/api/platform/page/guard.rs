//! What every request must be like, and what every answer says to the browser.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Only what the page's own server serves is run, shown or asked; no text ever becomes markup; nobody shows the page within theirs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// Refuses what comes from a page of another site, and adds to answers what keeps such pages out.
pub(super) async fn guard(State(bound): State<IpAddr>, request: Request, next: Next) -> Response {
    let mut response = match refusal(bound, request.uri(), request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().extend(HEADERS);
    response
}

fn refusal(bound: IpAddr, uri: &uri::Uri, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let named =
        uri.host().is_none() && hosts.next().is_none() && host.is_some_and(|host| is_own(bound, host));
    if !named {
        let message = "This page is there for the host localhost alone: http://localhost:PORT/\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, message));
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let from_here = matches!(site, None | Some(b"same-origin" | b"none"));
    // Links lead here from anywhere.
    let is_link =
        uri.path() == "/" && headers.get("sec-fetch-mode").map(HeaderValue::as_bytes) == Some(b"navigate");
    (!from_here && !is_link).then_some((StatusCode::FORBIDDEN, "Other sites have no business here.\n"))
}

/// Whether this is a name of the server that no other site can give to itself: an address, or `localhost`.
fn is_own(bound: IpAddr, host: &str) -> bool {
    let authority = host.parse::<uri::Authority>().ok();
    let Some(authority) = authority.filter(|_| !host.contains('@')) else {
        return false;
    };
    let name = authority.host();
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let address: Option<IpAddr> = literal.unwrap_or(name).parse().ok();
    address.is_some_and(|address| address.is_loopback() || bound.is_unspecified() || address == bound)
}
