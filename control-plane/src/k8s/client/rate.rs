//! Rate limits for requests to the API server, set by `--kube-api-qps` and `--kube-api-burst`, by
//! `clientConnection` of the config file, and by Ray's controllers.
//!
//! Promises:
//! - Each kind has a rate in the long run and a burst (GCRA, ITU-T I.371). Requests are sent in the
//!   order in which they came, and none is lost.
//! - A kind has a rate of its own, as each client of controller-runtime has: a thousand events do
//!   not delay a JobSet's status.
//! - Requests about namespaced objects may share one rate until a shutdown. Each namespace then has
//!   its own queue, and any of the queues may be next.
//! - Requests that others wait for are not limited. A leader that cannot renew its Lease ends, and
//!   a caller needs to know soon if it is authorized.

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

/// The longest time between two requests. A longer one is a mistake, and an infinite one would
/// never end.
const LONGEST: Duration = Duration::from_secs(1000);
/// Leases, authentication and authorization reviews.
const UNLIMITED: [&str; 3] = [
    "/apis/coordination.k8s.io/",
    "/apis/authentication.k8s.io/",
    "/apis/authorization.k8s.io/",
];
/// How many kinds have a rate of their own: several times as many as the control plane requests.
/// All others share one.
const KINDS: usize = 64;

struct Rate {
    limit: Arc<SharedRateLimit>,
    /// Held by the first request in the queue; the others wait for the lock.
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

    /// The same rate with a queue of its own.
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

/// The rates of all kinds, shared by several clients.
#[derive(Clone)]
pub(crate) struct Rates(Arc<Inner>);

struct Inner {
    requests: RequestRate,
    has: RateOf,
    /// By kind, or by namespace.
    rates: Lock<HashMap<String, Arc<Rate>>>,
    others: Arc<Rate>,
    /// Once cancelled, no request waits.
    shutdown: CancellationToken,
}

/// What each rate applies to.
#[derive(Clone, Copy)]
enum RateOf {
    EachKind,
    /// Namespaces take turns.
    AllTogether,
}

impl Rates {
    /// This rate for each kind.
    pub(crate) fn new(requests: RequestRate) -> Self {
        Self::of_what(requests, RateOf::EachKind, CancellationToken::new())
    }

    /// This rate for all kinds together, for requests about one namespace, until `shutdown`.
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

    /// The rate of requests to this path; `None` if they are not limited.
    fn of(&self, path: &str) -> Option<Arc<Rate>> {
        if UNLIMITED.iter().any(|unlimited| path.starts_with(unlimited)) {
            return None;
        }
        let own = match self.0.has {
            RateOf::EachKind => kind(path).map(|(group, resource)| format!("{group}/{resource}")),
            // Cluster-wide requests, which are watches and their lists, are not limited: they are
            // few.
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
                // Only queues with a waiting request are needed.
                rates.retain(|_, rate| Arc::strong_count(rate) > 1);
                self.0.others.line()
            }
        };
        Some(Arc::clone(rates.entry(own).or_insert_with(|| Arc::new(rate))))
    }
}

/// The namespace of a path; `None` if the path is cluster-wide.
fn namespace(path: &str) -> Option<&str> {
    let (_, below) = path.split_once("/namespaces/")?;
    below.split('/').next().filter(|name| !name.is_empty())
}

/// Group and resource of a path, regardless of version, namespace and subresource; `None` if it has
/// none, as in discovery.
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
        // The namespace object itself.
        None | Some("" | "status" | "finalize") => Some((group, first)),
        Some(resource) => Some((group, resource)),
    }
}

/// Limits the client to these rates.
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
