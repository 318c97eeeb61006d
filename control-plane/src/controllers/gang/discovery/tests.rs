use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Request, Response};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::core::Status;
use serde_json::json;
use tokio::time::Instant;
use tower::service_fn;

use super::*;

fn serving(kinds: &[&str]) -> Result<APIResourceList, kube::Error> {
    let resource = |name: &&str| APIResource {
        name: (*name).to_owned(),
        ..APIResource::default()
    };
    Ok(APIResourceList {
        resources: kinds.iter().map(resource).collect(),
        ..APIResourceList::default()
    })
}

fn refused(code: u16) -> Result<APIResourceList, kube::Error> {
    let status = Status::failure("refused", "Reason").with_code(code);
    Err(kube::Error::Api(status.boxed()))
}

#[test]
fn both_kinds_must_be_served() {
    assert_eq!(
        read(serving(&["workloads", "podgroups"])).unwrap(),
        Answer::Served
    );
    assert_eq!(read(serving(&["workloads"])).unwrap(), Answer::NotServed);
    assert_eq!(read(refused(404)).unwrap(), Answer::NotServed);
}

#[test]
fn who_may_not_ask_does_not_ask_for_ever() {
    assert_eq!(read(refused(403)).unwrap(), Answer::Forbidden);
    assert!(read(refused(500)).is_err(), "asked again");
}

/// An API server with these answers in order, the last one repeated, and the number of requests.
fn api_server(codes: &'static [u16]) -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = service_fn(move |_: Request<kube::client::Body>| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let code = codes[number.min(codes.len() - 1)];
        let answer = match code {
            200 => serde_json::to_value(serving(&KINDS).unwrap()).unwrap(),
            _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}),
        };
        let answer = Response::builder()
            .status(code)
            .body(Body::from(answer.to_string()));
        async move { Ok::<_, Infallible>(answer.unwrap()) }
    });
    (Client::new(service, "default"), asked)
}

#[tokio::test(start_paused = true)]
async fn what_is_served_later_is_noticed() {
    let (client, asked) = api_server(&[500, 404, 200, 404]);
    let pod_groups = PodGroups::unknown();
    assert!(!pod_groups.are_served() && !pod_groups.are_gone());
    let mut changes = pod_groups.changes();
    let task = tokio::spawn(pod_groups.clone().follow(client));
    pod_groups.known().await;
    changes.next().await;
    assert!(pod_groups.are_gone(), "an error is not an answer");
    let start = Instant::now();
    changes.next().await;
    assert!(pod_groups.are_served());
    assert_eq!(start.elapsed().as_secs(), BELIEVED.as_secs());
    // A PodGroup cannot be created: discovery asks again soon, but not for each failure.
    let before = asked.load(Ordering::SeqCst);
    for _ in 0..100 {
        pod_groups.doubt();
    }
    changes.next().await;
    assert!(pod_groups.are_gone());
    assert_eq!(start.elapsed().as_secs(), (BELIEVED + DOUBTED).as_secs());
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
    task.abort();
}
