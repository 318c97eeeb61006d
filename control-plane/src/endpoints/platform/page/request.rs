//! Requests of the page: what they ask for, which ones are refused, and the headers of every
//! answer.

use std::net::IpAddr;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::controllers::restart::board::Key;
use crate::endpoints::platform::fields;

/// Longest search text.
const MAX_SEARCH: usize = 256;

/// What the request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The groups whose NAMESPACE/NAME contains this text.
    Groups {
        /// Empty: all.
        search: String,
    },
    /// One group.
    Group(Key),
}

impl<S: Send + Sync> FromRequestParts<S> for Subject {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let refused = |message: &str| (StatusCode::BAD_REQUEST, format!("{message}\n"));
        if let Ok(Path((namespace, name))) = Path::<(String, String)>::from_request_parts(parts, state).await
        {
            let key = fields::key(namespace, name).map_err(|status| refused(status.message()))?;
            return Ok(Self::Group(key));
        }
        let search = match parts.uri.query() {
            None | Some("") => "",
            Some(query) => query
                .strip_prefix("search=")
                .ok_or_else(|| refused("the query: only search=TEXT is supported"))?,
        };
        // Names have no other characters, so nothing has to be unescaped.
        let in_names =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-./".contains(&byte);
        if search.len() > MAX_SEARCH || !search.bytes().all(in_names) {
            return Err(refused("search: must be a part of NAMESPACE/NAME"));
        }
        Ok(Self::Groups {
            search: search.to_owned(),
        })
    }
}

/// The page runs, shows and requests only what its own server serves. No text becomes markup, and
/// no other page can embed this one.
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

/// Refuses requests from pages of other sites, and adds the headers that keep such pages out.
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
        let message = "This page is only served for the host localhost: http://localhost:PORT/\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, message));
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let from_here = matches!(site, None | Some(b"same-origin" | b"none"));
    // Links may lead here from anywhere.
    let is_link =
        uri.path() == "/" && headers.get("sec-fetch-mode").map(HeaderValue::as_bytes) == Some(b"navigate");
    (!from_here && !is_link).then_some((StatusCode::FORBIDDEN, "Requests from other sites are refused.\n"))
}

/// True if this is a host name of the server that no other site can have: an address, or
/// `localhost`.
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
