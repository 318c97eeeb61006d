//! Fetches lists in pages that fit into memory, however large the objects are.
//!
//! A page is requested by a number of objects, and an object may have 1.5 MB: one page of 500 such
//! pods is 750 MB, and anyone who may create pods can cause that. A page that turns out too large
//! is dropped while it is read, and fewer objects are requested. The next pages start with the size
//! that fitted, and grow again. The caller sees a shorter page with a `continue` token, which the
//! API allows.
//!
//! Promises: no more than [`LARGEST`] of one page is held, or a single object. Requests that are
//! not for a page of a list pass through unchanged, but for [refusals that are too long](refusals)
//! and [the pace of new objects](create_pace).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::request::Parts;
use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::api::{ListMeta, ListParams};
use kube::client::Body;
use tower::BoxError;

use super::create_pace::{self, Blocked, CreatePace};
use super::refusals;

#[cfg(test)]
mod tests;

/// The limit of a page, in bytes.
const LARGEST: usize = 4 << 20;
/// The divisor for the size of a page that is too large.
const FEWER: u32 = 4;
/// How many lists with large pages are remembered: several times as many as the control plane
/// requests.
const LISTS: usize = 64;

/// The parameters for the page after this one; `None` if it was the last.
pub(crate) fn after(asked: ListParams, listed: &ListMeta) -> Option<ListParams> {
    let token = listed.continue_.as_deref().filter(|token| !token.is_empty())?;
    Some(asked.continue_token(token))
}

/// Wraps the client so that pages fit into memory.
pub(super) fn fitting(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let sizes = Sizes::default();
    let pace = CreatePace::default();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, sizes, pace) = (client.clone(), sizes.clone(), pace.clone());
        async move {
            if let Some(limit) = limit(request.method(), request.uri()) {
                return page(&client, &sizes, limit, request).await;
            }
            let answer = match create_pace::namespace_of(&request) {
                Some(namespace) => match pace.enter(namespace).await {
                    Ok(flight) => flight.land(client.send(request).await),
                    Err(Blocked(_)) => return refusals::too_slow(),
                },
                None => client.send(request).await,
            };
            refusals::shortened(answer.map_err(plain)?).await
        }
    });
    Client::new(service, namespace)
}

/// Requests a page of at most `most` objects.
async fn page(
    client: &Client,
    sizes: &Sizes,
    most: u32,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let (parts, _) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let mut objects = sizes.of(&path).unwrap_or(most).min(most);
    loop {
        let answer = client.send(of(&parts, objects)?).await.map_err(plain)?;
        if objects <= 1 {
            sizes.note(&path, 2, most);
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        if let Some(body) = refusals::read(body, LARGEST).await? {
            sizes.note(&path, objects.saturating_mul(2), most);
            return Ok(Response::from_parts(head, body));
        }
        objects = (objects / FEWER).max(1);
        sizes.note(&path, objects, most);
        tracing::debug!(path, objects, "list page too large, requesting fewer objects");
    }
}

/// The inner error. The outer client wraps it as a service error again.
fn plain(error: kube::Error) -> BoxError {
    match error {
        kube::Error::Service(error) => error,
        error => error.into(),
    }
}

/// How many objects a request for a page of a list asks for at most; `None` if it is another kind
/// of request, or asks for a single object.
fn limit(method: &Method, uri: &Uri) -> Option<u32> {
    let query = uri.query().filter(|_| method == Method::GET)?;
    let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit="))?;
    limit.parse().ok().filter(|limit| *limit > 1)
}

/// The request, with this limit.
fn of(parts: &Parts, objects: u32) -> Result<Request<Body>, http::Error> {
    let query = parts.uri.query().unwrap_or_default().split('&');
    let query: Vec<_> = query
        .map(|pair| match pair.strip_prefix("limit=") {
            Some(_) => format!("limit={objects}"),
            None => pair.to_owned(),
        })
        .collect();
    let target = format!("{}?{}", parts.uri.path(), query.join("&"));
    let mut parts = parts.clone();
    let mut uri = parts.uri.into_parts();
    uri.path_and_query = Some(target.parse()?);
    parts.uri = Uri::from_parts(uri)?;
    Ok(Request::from_parts(parts, Body::empty()))
}

/// The limit for the next page of each list whose usual page would be too large.
#[derive(Clone, Default)]
struct Sizes(Arc<Mutex<HashMap<String, u32>>>);

impl Sizes {
    fn of(&self, path: &str) -> Option<u32> {
        let sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.get(path).copied()
    }

    fn note(&self, path: &str, objects: u32, most: u32) {
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if objects >= most {
            sizes.remove(path);
        } else if sizes.len() < LISTS || sizes.contains_key(path) {
            sizes.insert(path.to_owned(), objects);
        }
    }
}
