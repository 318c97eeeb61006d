//! How often the API server is asked, where that is limited: by `--kube-api-qps` and `--kube-api-burst`, or `clientConnection` of the file.
//!
//! Promises: of each kind no more than so many requests in a second in the long run, and so many at once (GCRA, ITU-T I.371); in the order in which
//! they came; none is lost. A kind has a rate of its own, as each client of controller-runtime has: a thousand events keep no JobSet's status waiting.
//! What others wait for is not limited: a leader that could not renew its Lease would end, and a caller is to learn soon whether he is let in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;

use crate::pace::Pace;
use crate::settings::RequestRate;

#[cfg(test)]
mod tests;

/// A time between two requests that is longer than this is not what somebody meant, and one without end would end no wait.
const LONGEST: Duration = Duration::from_secs(1000);
/// Leases, and who callers are and what they may.
const UNLIMITED: [&str; 3] = [
    "/apis/coordination.k8s.io/",
    "/apis/authentication.k8s.io/",
    "/apis/authorization.k8s.io/",
];
/// Kinds with a rate of their own: several times as many as the control plane asks for. All others share one.
const KINDS: usize = 64;

struct Rate {
    pace: Pace,
    /// Held by whoever waits: others wait for him.
    turn: Mutex<()>,
}

impl Rate {
    fn new(requests: RequestRate) -> Self {
        let every = Duration::try_from_secs_f32(1.0 / requests.per_second).unwrap_or(LONGEST);
        let every = every.min(LONGEST);
        Self {
            pace: Pace::new(every, requests.burst.saturating_sub(1)),
            turn: Mutex::default(),
        }
    }

    /// Resolves once the next request may be sent, and counts it. Cancel-safe.
    async fn take(&self) {
        let _turn = self.turn.lock().await;
        self.pace.take(1).await;
    }
}

/// The rates of all kinds, of all clients that share them.
#[derive(Clone)]
pub(crate) struct Rates(Arc<Inner>);

struct Inner {
    requests: RequestRate,
    kinds: Lock<HashMap<String, Arc<Rate>>>,
    others: Arc<Rate>,
}

impl Rates {
    /// For each kind this one.
    pub(crate) fn new(requests: RequestRate) -> Self {
        Self(Arc::new(Inner {
            requests,
            kinds: Lock::default(),
            others: Arc::new(Rate::new(requests)),
        }))
    }

    /// That of requests to this path; none where they are not limited.
    fn of(&self, path: &str) -> Option<Arc<Rate>> {
        if UNLIMITED.iter().any(|unlimited| path.starts_with(unlimited)) {
            return None;
        }
        let Some((group, resource)) = kind(path) else {
            return Some(Arc::clone(&self.0.others));
        };
        let kind = format!("{group}/{resource}");
        let mut kinds = self.0.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = kinds.get(&kind) {
            return Some(Arc::clone(rate));
        }
        if kinds.len() >= KINDS {
            return Some(Arc::clone(&self.0.others));
        }
        let rate = kinds
            .entry(kind)
            .or_insert_with(|| Arc::new(Rate::new(self.0.requests)));
        Some(Arc::clone(rate))
    }
}

/// Group and resource that a path is about, whatever the version, the namespace and the subresource; nothing where it is about none, as discovery is.
fn kind(path: &str) -> Option<(&str, &str)> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let _version = parts.next()?;
    let first = parts.next().filter(|resource| !resource.is_empty())?;
    if first != "namespaces" {
        return Some((group, first));
    }
    let _namespace = parts.next();
    match parts.next() {
        // Of the namespace itself.
        None | Some("" | "status" | "finalize") => Some((group, first)),
        Some(resource) => Some((group, resource)),
    }
}

/// The client, at these rates.
pub(super) fn limited(client: Client, rates: Rates) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, rate) = (client.clone(), rates.of(request.uri().path()));
        async move {
            if let Some(rate) = rate {
                rate.take().await;
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}
