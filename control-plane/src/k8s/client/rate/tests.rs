use std::convert::Infallible;
use std::fmt::Debug;
use std::future::ready;

use futures::future::join_all;
use http::Response;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::*;

fn client(per_second: f32, burst: u32) -> Client {
    at(Rates::new(RequestRate { per_second, burst }))
}

fn at(rates: Rates) -> Client {
    let server = tower::service_fn(|_: Request<Body>| {
        let found = Body::from(b"{\"metadata\": {\"name\": \"x\"}, \"spec\": {}}".to_vec());
        ready(Ok::<_, Infallible>(Response::new(found)))
    });
    limited(Client::new(server, "default"), rates)
}

/// How long this many requests take if they are sent at once.
async fn ask<K: Clone + Debug + DeserializeOwned>(api: Api<K>, times: usize) -> Duration {
    let began = Instant::now();
    let asked = join_all((0..times).map(|_| api.get("x"))).await;
    assert!(asked.iter().all(Result::is_ok), "{asked:?}");
    began.elapsed()
}

async fn ask_nodes(client: &Client, times: usize) -> Duration {
    ask(Api::<Node>::all(client.clone()), times).await
}

/// How long one request takes.
async fn ask_path(client: &Client, path: &str) -> Duration {
    let began = Instant::now();
    let request = Request::get(path).body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap();
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
    let client = client(10.0, 5);
    assert_eq!(ask_nodes(&client, 5).await.as_millis(), 0);
    assert_eq!(ask_nodes(&client, 20).await.as_millis() / 10, 200);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(ask_nodes(&client, 5).await.as_millis(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_kind_does_not_wait_for_another() {
    let client = client(0.1, 1);
    let pods = Api::<Pod>::default_namespaced(client.clone());
    let namespaces = Api::<Namespace>::all(client.clone());
    let (nodes, pods, namespaces) = tokio::join!(ask_nodes(&client, 10), ask(pods, 2), ask(namespaces, 1));
    assert_eq!(
        (nodes.as_secs(), pods.as_secs(), namespaces.as_millis()),
        (90, 10, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_the_same_in_all_namespaces_versions_and_subresources() {
    for paths in [
        [
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/b/pods/x/status",
            "/api/v1/pods?limit=1",
        ],
        [
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets/x",
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/b/jobsets/x/status",
            "/apis/jobset.x-k8s.io/v1/jobsets",
        ],
        [
            "/api/v1/namespaces",
            "/api/v1/namespaces/a",
            "/api/v1/namespaces/a/finalize",
        ],
        ["/version", "/apis/jobset.x-k8s.io/v1alpha2", "/api"],
    ] {
        let client = client(0.1, 1);
        for (before, path) in (0..).zip(paths) {
            let waited = ask_path(&client, path).await.as_secs();
            assert_eq!(waited, if before == 0 { 0 } else { 10 }, "{path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_two_groups_have_is_two_kinds() {
    let client = client(0.1, 1);
    for path in ["/api/v1/events", "/apis/events.k8s.io/v1/events"] {
        assert_eq!(ask_path(&client, path).await.as_millis(), 0, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_without_number_share_a_rate() {
    let rates = Rates::new(RequestRate {
        per_second: 0.1,
        burst: 1,
    });
    let of = |kind: usize| rates.of(&format!("/apis/batch/v1/kind{kind}")).unwrap();
    let before: Vec<_> = (0..KINDS).map(of).collect();
    for kind in KINDS..2 * KINDS {
        assert!(Arc::ptr_eq(&of(kind), &rates.0.others), "{kind}");
    }
    assert_eq!(rates.0.rates.lock().unwrap().len(), KINDS);
    for (kind, rate) in before.iter().enumerate() {
        assert!(Arc::ptr_eq(&of(kind), rate), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_and_access_reviews_are_not_limited() {
    let client = client(0.1, 1);
    let leases = Api::<Lease>::default_namespaced(client.clone());
    let reviews = async {
        let tokens = Api::<TokenReview>::all(client.clone());
        let accesses = Api::<SubjectAccessReview>::all(client.clone());
        let began = Instant::now();
        for _ in 0..10 {
            let post = PostParams::default();
            tokens.create(&post, &TokenReview::default()).await.unwrap();
            let access = SubjectAccessReview::default();
            accesses.create(&post, &access).await.unwrap();
        }
        began.elapsed()
    };
    let (asked, renewed, reviewed) = tokio::join!(ask_nodes(&client, 10), ask(leases, 10), reviews);
    let unlimited = (renewed.as_millis(), reviewed.as_millis());
    assert_eq!((asked.as_secs(), unlimited), (90, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn no_rate_is_too_low_or_too_high() {
    for (per_second, burst) in [
        (f32::MIN_POSITIVE, 1),
        (f32::MIN_POSITIVE, u32::MAX),
        (f32::MAX, 1),
        (f32::INFINITY, 1),
    ] {
        let waited = ask_nodes(&client(per_second, burst), 2).await;
        assert!(waited <= LONGEST + Duration::from_millis(10));
    }
}

#[tokio::test(start_paused = true)]
async fn all_kinds_together_have_one_rate_and_namespaces_lines_of_their_own() {
    let shutdown = CancellationToken::new();
    let requests = RequestRate {
        per_second: 10.0,
        burst: 5,
    };
    let client = at(Rates::together(requests, shutdown.clone()));
    let pods = |namespace: &str| Api::<Pod>::namespaced(client.clone(), namespace);
    assert_eq!(ask(pods("busy"), 5).await.as_millis(), 0);
    let other = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask(pods("other"), 1).await
    };
    let (busy, other) = tokio::join!(ask(pods("busy"), 100), other);
    assert_eq!(busy.as_secs(), 10);
    assert!(other < Duration::from_secs(2), "{other:?}");
    // Requests for a Lease do not wait, nor do requests without a namespace.
    let leases = Api::<Lease>::namespaced(client.clone(), "busy");
    assert_eq!(ask(leases, 50).await.as_millis(), 0);
    assert_eq!(ask_nodes(&client, 50).await.as_millis(), 0);
    // A shutdown waits for nothing.
    let end = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.cancel();
    };
    let (busy, ()) = tokio::join!(ask(pods("busy"), 100), end);
    assert_eq!(busy.as_secs(), 1);
}

#[test]
fn the_namespace_is_read_of_a_path() {
    for (path, expected) in [
        ("/api/v1/namespaces/a/pods/b", Some("a")),
        ("/apis/ray.io/v1/namespaces/a/rayjobs", Some("a")),
        ("/apis/ray.io/v1/rayjobs", None),
        ("/api/v1/namespaces", None),
        ("/api/v1/nodes/x", None),
    ] {
        assert_eq!(namespace(path), expected, "{path}");
    }
}
