use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

fn lease(namespace: &str, holder: &str, ago: SignedDuration) -> Value {
    let renewed = format!("{:.6}", Timestamp::now() - ago);
    json!({"metadata": {"name": LEASE, "namespace": namespace},
        "spec": {"holderIdentity": holder, "renewTime": renewed}})
}

/// The size of the API server's pages of Leases, whatever the client asks for.
const PAGE: usize = 10;

/// A page of these Leases that begins at the position in the query.
fn page(leases: &[Value], query: &str) -> Value {
    let begin = query.split('&').find_map(|pair| pair.strip_prefix("continue="));
    let begin: usize = begin.map_or(0, |begin| begin.parse().unwrap());
    let end = leases.len().min(begin + PAGE);
    let next = if end < leases.len() {
        end.to_string()
    } else {
        String::new()
    };
    json!({"metadata": {"continue": next}, "items": leases[begin..end]})
}

/// A cluster with these Leases. The operator in `kuberay` has rights in all namespaces, a team's
/// own only in `team`. Counts the requests.
fn cluster(leases: Vec<Value>) -> (KubeRay, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let leases = leases.clone();
        async move {
            let path = request.uri().path().to_owned();
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (code, answer) = if path.ends_with("/leases") {
                (200, page(&leases, &query))
            } else if path.ends_with("/subjectaccessreviews") {
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                let user = review["spec"]["user"].as_str().unwrap();
                let place = review["spec"]["resourceAttributes"]["namespace"].as_str();
                let allowed = user == "system:serviceaccount:kuberay:operator"
                    || user == "system:serviceaccount:team:kuberay-operator" && place == Some("team");
                review["status"] = json!({"allowed": allowed});
                (201, review)
            } else if path.ends_with("/pods/operator-1") {
                let spec = json!({"containers": [], "serviceAccountName": "operator"});
                (200, json!({"metadata": {"name": "operator-1"}, "spec": spec}))
            } else {
                // The name contains the code of the API server's answer.
                let code = path.rsplit("/of-code-").next().and_then(|code| code.parse().ok());
                let code: u16 = code.unwrap_or(404);
                let reason = if code == 404 { "NotFound" } else { "Odd" };
                (
                    code,
                    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}),
                )
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            ready(Ok::<_, Infallible>(answer.unwrap())).await
        }
    });
    (KubeRay::new(Client::new(service, "default")), asked)
}

#[tokio::test]
async fn it_runs_for_the_namespaces_that_its_holder_may_act_in() {
    let now = SignedDuration::ZERO;
    let (kuberay, asked) = cluster(vec![lease("kuberay", "operator-1_5e6c", now)]);
    assert!(kuberay.runs("team").await.unwrap() && kuberay.runs("other").await.unwrap());
    assert_eq!(
        asked.load(Ordering::Relaxed),
        3,
        "leases, a pod, and a right in all namespaces"
    );
    // An operator for its own namespace, in the host's network.
    let (kuberay, _) = cluster(vec![lease("team", "node-1_5e6c", now)]);
    assert!(kuberay.runs("team").await.unwrap() && !kuberay.runs("other").await.unwrap());
}

#[tokio::test]
async fn a_lease_of_a_tenant_does_not_count() {
    for holder in [
        "operator-1_1",
        "x",
        "_1",
        ".._1",
        "._1",
        "../../kuberay/pods/operator-1_1",
        "a/b_1",
        "",
    ] {
        let (kuberay, _) = cluster(vec![lease("evil", holder, SignedDuration::ZERO)]);
        assert!(!kuberay.runs("team").await.unwrap(), "{holder:?}");
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_read_hides_no_other() {
    let mut odd = lease("evil", "x", SignedDuration::ZERO);
    odd["spec"] = json!({"renewTime": "9999-12-31T00:00:00.000000Z", "holderIdentity": 7});
    let real = lease("kuberay", "operator-1_1", SignedDuration::ZERO);
    let (kuberay, _) = cluster(vec![odd, real]);
    assert!(kuberay.runs("team").await.unwrap());
}

#[tokio::test]
async fn a_lease_from_long_ago_or_from_the_future_is_not_held() {
    for (ago, held) in [
        (59, true),
        (61, false),
        (-59, true),
        (-61, false),
        (-1_000_000_000, false),
    ] {
        let ago_by = SignedDuration::from_secs(ago);
        let (kuberay, _) = cluster(vec![lease("kuberay", "operator-1_1", ago_by)]);
        assert_eq!(kuberay.runs("team").await.unwrap(), held, "{ago} s ago");
    }
}

#[tokio::test]
async fn pages_of_leases_are_read_up_to_as_many_as_are_looked_at() {
    let held = |before: usize| {
        let old = lease("evil", "x", SignedDuration::from_hours(1));
        let real = lease("kuberay", "operator-1_1", SignedDuration::ZERO);
        cluster([vec![old; before], vec![real]].concat())
    };
    let (kuberay, _) = held(255);
    assert!(kuberay.runs("team").await.unwrap());
    let (kuberay, asked) = held(256);
    assert!(!kuberay.runs("team").await.unwrap());
    assert_eq!(
        asked.load(Ordering::Relaxed),
        26,
        "pages of ten, and nothing else"
    );
}

#[tokio::test]
async fn only_a_name_that_no_pod_can_have_is_no_pods() {
    for code in [400, 404, 414, 422] {
        let holder = format!("of-code-{code}_1");
        let (kuberay, _) = cluster(vec![lease("team", &holder, SignedDuration::ZERO)]);
        assert!(kuberay.runs("team").await.unwrap(), "{code}");
    }
    for code in [401, 403, 429, 500] {
        let holder = format!("of-code-{code}_1");
        let (kuberay, _) = cluster(vec![lease("team", &holder, SignedDuration::ZERO)]);
        assert!(kuberay.runs("team").await.is_err(), "{code}");
    }
}
