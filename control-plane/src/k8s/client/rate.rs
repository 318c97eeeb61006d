//! Rates of requests to the API server, if they are limited: by `--kube-api-qps` and
//! `--kube-api-burst`, by `clientConnection` of the file, and by Ray's controllers.
//!
//! Promises:
//! - Each kind has a rate in the long run and a burst (GCRA, ITU-T I.371). Requests are sent in the
//!   order in which they came, and none is lost.
//! - A kind has a rate of its own, as each client of controller-runtime has: a thousand events do
//!   not delay a JobSet's status.
//! - Requests about objects of namespaces may share one rate until a shutdown. Each namespace then
//!   waits in a line of its own, and any of them may be next.
//! - Requests that others wait for are not limited. A leader that could not renew its Lease would
//!   end, and a caller is to learn soon if it is let in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use lockstep_process::rate_limit::{self, SharedRateLimit};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::settings::RequestRate;

#[cfg(test)]
mod tests;

/// A time between two requests that is longer than this is not what somebody meant, and one without
/// end would end no wait.
const LONGEST: Duration = Duration::from_secs(1000);
/// Leases, and who callers are and what they may.
const UNLIMITED: [&str; 3] = [
    "/apis/coordination.k8s.io/",
    "/apis/authentication.k8s.io/",
    "/apis/authorization.k8s.io/",
];
/// Kinds with a rate of their own: several times as many as the control plane asks for. All others
/// share one.
const KINDS: usize = 64;

struct Rate {
    limit: Arc<SharedRateLimit>,
    /// Held by the request that waits: others wait for it.
    turn: Mutex<()>,
}

impl Rate {
    fn new(requests: RequestRate) -> Self {
        let every = Duration::try_from_secs_f32(1.0 / requests.per_second).unwrap_or(LONGEST);
        let every = every.min(LONGEST);
        Self {
            limit: Arc::new(SharedRateLimit::new(rate_limit::Rate {
                burst: requests.burst.max(1),
                every,
            })),
            turn: Mutex::default(),
        }
    }

    /// The same rate, for requests that wait for no others than each other.
    fn line(&self) -> Self {
        Self {
            limit: Arc::clone(&self.limit),
            turn: Mutex::default(),
        }
    }

    /// Resolves once the next request may be sent, and counts it. Cancel-safe.
    async fn take(&self) {
        let _turn = self.turn.lock().await;
        self.limit.acquire(1).await;
    }
}

/// The rates of all kinds, of all clients that share them.
#[derive(Clone)]
pub(crate) struct Rates(Arc<Inner>);

struct Inner {
    requests: RequestRate,
    has: RateOf,
    /// By kind, or by namespace.
    rates: Lock<HashMap<String, Arc<Rate>>>,
    others: Arc<Rate>,
    /// Once it is cancelled nothing waits any more.
    shutdown: CancellationToken,
}

/// What has a rate.
#[derive(Clone, Copy)]
enum RateOf {
    EachKind,
    /// Namespaces take turns.
    AllTogether,
}

impl Rates {
    /// For each kind this one.
    pub(crate) fn new(requests: RequestRate) -> Self {
        Self::of_what(requests, RateOf::EachKind, CancellationToken::new())
    }

    /// This one for all kinds together, of what is about one namespace, until `shutdown`.
    pub(crate) fn together(requests: RequestRate, shutdown: CancellationToken) -> Self {
        Self::of_what(requests, RateOf::AllTogether, shutdown)
    }

    fn of_what(requests: RequestRate, has: RateOf, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            requests,
            has,
            rates: Lock::default(),
            others: Arc::new(Rate::new(requests)),
            shutdown,
        }))
    }

    /// That of requests to this path; none if they are not limited.
    fn of(&self, path: &str) -> Option<Arc<Rate>> {
        if UNLIMITED.iter().any(|unlimited| path.starts_with(unlimited)) {
            return None;
        }
        let own = match self.0.has {
            RateOf::EachKind => kind(path).map(|(group, resource)| format!("{group}/{resource}")),
            // Watches and their lists: they are few.
            RateOf::AllTogether => Some(namespace(path)?.to_owned()),
        };
        let Some(own) = own else {
            return Some(Arc::clone(&self.0.others));
        };
        let mut rates = self.0.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = rates.get(&own) {
            return Some(Arc::clone(rate));
        }
        let rate = match self.0.has {
            RateOf::EachKind if rates.len() >= KINDS => return Some(Arc::clone(&self.0.others)),
            RateOf::EachKind => Rate::new(self.0.requests),
            RateOf::AllTogether => {
                // Only those that somebody waits in are needed.
                rates.retain(|_, rate| Arc::strong_count(rate) > 1);
                self.0.others.line()
            }
        };
        Some(Arc::clone(rates.entry(own).or_insert_with(|| Arc::new(rate))))
    }
}

/// The namespace that a path is about; nothing if it is about none, or all.
fn namespace(path: &str) -> Option<&str> {
    let (_, below) = path.split_once("/namespaces/")?;
    below.split('/').next().filter(|name| !name.is_empty())
}

/// Group and resource that a path is about, whatever the version, the namespace and the
/// subresource; nothing if it is about none, as discovery is.
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
pub(crate) fn limited(client: Client, rates: Rates) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, rate) = (client.clone(), rates.of(request.uri().path()));
        let shutdown = rates.0.shutdown.clone();
        async move {
            if let Some(rate) = rate {
                shutdown.run_until_cancelled(rate.take()).await;
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}
