use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use jiff::SignedDuration;
use kube::core::Status;
use kube::runtime::controller::Action;
use kube::{Client, Config};
use lockstep_api::ray::{RayJob, RayJobSpec};
use serde_json::Value;
use tower::service_fn;

use super::*;
use crate::k8s::apply::events::{self, Publisher};

/// A retry state whose events are not published.
fn retry_state() -> RetryState<RayJob> {
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    let (queue, _) = events::queue_as(Client::try_from(config).unwrap(), "test");
    RetryState::new(queue)
}

/// A retry state, the task that publishes its events once it is dropped, and their notes. A
/// repeated event repeats its note.
fn with_events() -> (RetryState<RayJob>, Publisher, Arc<Mutex<Vec<String>>>) {
    let notes: Arc<Mutex<Vec<String>>> = Arc::default();
    let published = Arc::clone(&notes);
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let published = Arc::clone(&published);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let event: Value = serde_json::from_slice(&body).unwrap();
            let note = event["note"].as_str().unwrap_or_default().to_owned();
            published.lock().unwrap().push(note);
            Ok::<_, Infallible>(Response::new(Body::from(body)))
        }
    });
    let (queue, publisher) = events::queue_as(Client::new(service, "default"), "test");
    (RetryState::new(queue), publisher, notes)
}

fn job(uid: &str) -> RayJob {
    let mut job = RayJob::new("rj", RayJobSpec::default());
    job.metadata.namespace = Some("ns".to_owned());
    job.metadata.uid = Some(uid.to_owned());
    job
}

fn refused(why: &str) -> RayError {
    let status = Status::failure(why, "Forbidden").with_code(403);
    RayError::Create {
        kind: "RayCluster".to_owned(),
        what: "RayCluster rj-x".to_owned(),
        error: kube::Error::Api(status.boxed()),
    }
}

#[test]
fn a_refusal_is_reported_with_only_its_message() {
    let event = refused("exceeded quota").event().unwrap();
    assert_eq!(event.reason, "FailedToCreateRayCluster");
    assert_eq!(event.message, "RayCluster rj-x cannot be created: exceeded quota");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_holds_even_after_many_failures() {
    let (retry_state, job) = (retry_state(), job("u"));
    let fails = || {
        let error = RayError::Dashboard("away".to_owned());
        (0..30).map(|_| retry_state.failed(&job, &error)).last().unwrap()
    };
    assert_eq!(fails(), Action::requeue(Duration::from_secs(300)));
    retry_state.decided(&job, Some(SignedDuration::from_secs(7)));
    assert_eq!(fails(), Action::requeue(Duration::from_secs(7)));
    // The deadline approaches, regardless of attempts in between.
    let almost = Duration::from_millis(6_990);
    tokio::time::advance(almost).await;
    let left = Duration::from_secs(7).saturating_sub(almost);
    assert_eq!(fails(), Action::requeue(left));
    assert_eq!(retry_state.rests(&job), Some(left));
    tokio::time::advance(left).await;
    assert_eq!(retry_state.rests(&job), None);
    retry_state.decided(&job, None);
    assert_eq!(fails(), Action::requeue(Duration::from_secs(300)));
    // It cannot even be observed: the due look is still to come. After that look it no longer
    // counts.
    retry_state.decided(&job, Some(SignedDuration::from_secs(7)));
    retry_state.begins(&job);
    assert_eq!(fails(), Action::requeue(Duration::from_secs(7)));
    tokio::time::advance(Duration::from_secs(7)).await;
    retry_state.begins(&job);
    assert_eq!(fails(), Action::requeue(Duration::from_secs(300)));
    // An object that was observed but had no turn does not wait for former failures.
    retry_state.begins(&job);
    assert_eq!(retry_state.postponed(&job), Action::requeue(NEXT_TURN));
    assert_eq!(retry_state.rests(&job), None);
}

#[tokio::test]
async fn a_refused_creation_is_reported_once_until_a_success_or_a_new_object() {
    let (retry_state, publisher, notes) = with_events();
    for _ in 0..3 {
        retry_state.failed(&job("u"), &refused("exceeded quota"));
        retry_state.failed(&job("u"), &RayError::Conflict("RayJob rj".to_owned()));
    }
    retry_state.worked(&job("u"), None, false);
    retry_state.failed(&job("u"), &refused("exceeded quota"));
    retry_state.failed(&job("v"), &refused("exceeded quota"));
    retry_state.failed(&job("v"), &refused("another policy"));
    drop(retry_state);
    publisher.run().await;
    let notes = notes.lock().unwrap();
    let of = |why: &str| notes.iter().filter(|note| note.contains(why)).count();
    assert_eq!((of("exceeded quota"), of("another policy")), (3, 1), "{notes:?}");
}

#[tokio::test]
async fn why_nothing_is_done_is_reported_once_for_each_object() {
    let (retry_state, publisher, notes) = with_events();
    let notice = plan::Event {
        severity: plan::Severity::Warning,
        reason: "ManagedByAnother".to_owned(),
        message: "left to another".to_owned(),
    };
    for uid in ["u", "u", "v", "v"] {
        retry_state.publish_once(&job(uid), notice.clone());
        // That does not mean that the reported write succeeded.
        retry_state.worked(&job(uid), None, true);
    }
    drop(retry_state);
    publisher.run().await;
    assert_eq!(notes.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_keeps_failing_rests_regardless_of_changes() {
    let (retry_state, job) = (retry_state(), job("u"));
    retry_state.failed(&job, &refused("no"));
    assert_eq!(
        retry_state.rests(&job),
        None,
        "the first change may be what was missing"
    );
    retry_state.failed(&job, &refused("no"));
    assert_eq!(retry_state.rests(&job), Some(Duration::from_millis(100)));
    retry_state.worked(&job, None, false);
    assert_eq!(retry_state.rests(&job), None);
}
