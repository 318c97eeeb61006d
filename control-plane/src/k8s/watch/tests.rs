use std::convert::Infallible;

use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

fn pod(name: &str, jobset: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
            "labels": {labels::JOBSET_NAME: jobset},
        },
        "spec": {"containers": []},
    })
}

/// A client of an API server that lists these pods and then shows no change.
fn showing(pods: Vec<Value>) -> Client {
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let list = json!({
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods,
        });
        async move {
            if query.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string())))
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_jobset_with_a_pod_that_is_left_out_is_seen_in_part() {
    let (pods, writer) = Cache::new();
    let mut caches = Caches {
        pods,
        ..Caches::empty()
    };
    caches.budgets.pods = Budget::new(2_000, usize::MAX);
    let stores = Stores::new(caches);
    let notifier = || notify::channel().0;
    let watchers = Watchers {
        reconciler: notifier(),
        groups: notifier(),
        placement: notify::channel().0,
        gangs: notifier(),
        ray: None,
    };
    let mut tasks = JoinSet::new();
    let shutdown = CancellationToken::new();
    let client = showing(vec![pod("a", "first"), pod("b", "first"), pod("c", "second")]);
    let mut start = Start {
        client: &client,
        watchers: &watchers,
        caches: &stores.caches,
        tasks: &mut tasks,
        shutdown: &shutdown,
    };
    start.pods(writer);
    stores.caches.pods.wait_until_ready().await;

    let key = |name: &str| ObjectRef::new(name).within("ns");
    let seen = ["first", "second"].map(|name| {
        (
            stores.pods_of(&key(name)).len(),
            stores.is_seen_in_part(&key(name)),
        )
    });
    assert_eq!(seen, [(2, false), (0, true)]);
    shutdown.cancel();
    tasks.join_all().await;
}
