//! How often the API server is asked, where that is limited: by `--kube-api-qps` and `--kube-api-burst`, or `clientConnection` of the file.
//!
//! Promises: no more than so many requests in a second in the long run, and so many at once (GCRA, ITU-T I.371); in the order in which they came;
//! none is lost. Those of Leases wait for no others: a leader that could not renew would end.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::settings::RequestRate;

/// A time between two requests that is longer than this is not what somebody meant, and one without end would end no wait.
const LONGEST: Duration = Duration::from_secs(1000);
const LEASES: &str = "/apis/coordination.k8s.io/";

struct Rate {
    every: Duration,
    burst: Duration,
    /// When the next one would be sent if all were sent evenly. Who waits holds it, and others wait for him.
    even: Mutex<Instant>,
}

impl Rate {
    fn new(requests: RequestRate) -> Self {
        let every = Duration::try_from_secs_f32(1.0 / requests.per_second).unwrap_or(LONGEST);
        let every = every.min(LONGEST);
        Self {
            every,
            burst: every * requests.burst.saturating_sub(1),
            even: Mutex::new(Instant::now()),
        }
    }

    /// Resolves once the next request may be sent, and counts it. Cancel-safe.
    async fn take(&self) {
        let mut even = self.even.lock().await;
        if let Some(at) = even.checked_sub(self.burst) {
            sleep_until(at).await;
        }
        *even = (*even).max(Instant::now()) + self.every;
    }
}

/// The client, at this rate.
pub(super) fn limited(client: Client, requests: RequestRate) -> Client {
    let rate = Arc::new(Rate::new(requests));
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, rate) = (client.clone(), Arc::clone(&rate));
        async move {
            if !request.uri().path().starts_with(LEASES) {
                rate.take().await;
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use http::Response;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;

    use super::*;

    fn client(per_second: f32, burst: u32) -> Client {
        let server = tower::service_fn(|_: Request<Body>| {
            let found = Body::from(b"{\"metadata\": {\"name\": \"x\"}}".to_vec());
            ready(Ok::<_, Infallible>(Response::new(found)))
        });
        limited(Client::new(server, "default"), RequestRate { per_second, burst })
    }

    async fn ask(client: &Client, times: usize) -> Duration {
        let nodes: Api<Node> = Api::all(client.clone());
        let began = Instant::now();
        let asked = futures::future::join_all((0..times).map(|_| nodes.get("x")));
        assert!(asked.await.iter().all(Result::is_ok));
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let client = client(10.0, 5);
        assert_eq!(ask(&client, 5).await.as_millis(), 0);
        assert_eq!(ask(&client, 20).await.as_millis() / 10, 200);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(ask(&client, 5).await.as_millis(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_while_others_wait() {
        let client = client(0.1, 1);
        let leases: Api<Lease> = Api::default_namespaced(client.clone());
        let renew = async {
            let began = Instant::now();
            for _ in 0..10 {
                leases.get("x").await.unwrap();
            }
            began.elapsed()
        };
        let (asked, renewed) = tokio::join!(ask(&client, 10), renew);
        assert_eq!((asked.as_secs(), renewed.as_millis()), (90, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn no_rate_is_too_low_or_too_high() {
        for (per_second, burst) in [
            (f32::MIN_POSITIVE, 1),
            (f32::MIN_POSITIVE, u32::MAX),
            (f32::MAX, 1),
            (f32::INFINITY, 1),
        ] {
            assert!(ask(&client(per_second, burst), 2).await <= LONGEST + Duration::from_millis(10));
        }
    }
}
