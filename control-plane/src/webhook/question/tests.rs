use axum::body::Body;
use futures::FutureExt;
use serde_json::json;

use super::*;
use crate::webhook::tests::{admission, api_server};

fn admitting() -> Admission {
    admission(api_server(Ok(std::collections::BTreeMap::new())))
}

/// A review of so many bytes, from this address.
fn asked(sender: u8, namespace: &str, bytes: usize) -> Request {
    let mut body = json!({"request": {"namespace": namespace}}).to_string();
    body.extend(std::iter::repeat_n(' ', bytes.saturating_sub(body.len())));
    sent(sender, body.len(), body.into())
}

fn sent(sender: u8, length: usize, body: Body) -> Request {
    Request::post("/")
        .header(header::CONTENT_LENGTH, length)
        .extension(Sender(IpAddr::from([10, 0, 0, sender])))
        .body(body)
        .unwrap()
}

/// The question, or why there is none; nothing where it waits.
fn now(request: Request, admission: &Admission) -> Option<Result<Question, StatusCode>> {
    let question = Question::from_request(request, admission).now_or_never()?;
    Some(question.map_err(|refused| refused.status()))
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_fills_its_part_is_turned_away_and_no_other_one() {
    let admission = admitting();
    let of = |sender: u8, namespace: &str| now(asked(sender, namespace, 4 << 20), &admission).unwrap();
    let first = of(1, "evil").unwrap();
    let second = Question::from_request(asked(1, "evil", 4 << 20), &admission).await;
    assert_eq!(second.err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(of(1, "good").is_ok());
    // Whoever else names it takes nothing of what the API server has for it.
    assert!(of(2, "evil").is_ok());
    drop(first);
    assert!(of(1, "evil").is_ok());
}

#[tokio::test]
async fn small_ones_wait_for_no_large_ones() {
    let admission = admitting();
    let large: Vec<_> = ["a", "b", "c", "d"]
        .map(|namespace| now(asked(1, namespace, 4 << 20), &admission))
        .into_iter()
        .collect();
    assert!(large.iter().all(Option::is_some));
    assert!(
        now(asked(1, "e", 4 << 20), &admission).is_none(),
        "there is no more room"
    );
    assert!(now(asked(1, "e", 4 << 10), &admission).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_sends_slowly_is_turned_away_and_takes_room_of_its_own_address() {
    let admission = admitting();
    let never = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow: Vec<_> = (0..100)
        .map(|_| Box::pin(Question::from_request(sent(1, LONGEST_BODY, never()), &admission)))
        .collect();
    let slow = futures::future::join_all(slow);
    let (slow, other) = tokio::join!(slow, async {
        tokio::task::yield_now().await;
        now(asked(2, "good", 4 << 20), &admission)
    });
    assert!(other.unwrap().is_ok());
    let refused = |question: Result<Question, Response>| question.err().map(|refused| refused.status());
    assert!(
        slow.into_iter()
            .all(|question| refused(question) == Some(StatusCode::REQUEST_TIMEOUT))
    );
}

#[tokio::test]
async fn of_those_that_take_much_to_read_there_is_one() {
    let admission = admitting();
    let elements = |namespace: &str| {
        let body = json!({"request": {"namespace": namespace, "object": vec![1; 20_000]}}).to_string();
        sent(1, body.len(), body.into())
    };
    let first = now(elements("a"), &admission).unwrap().ok();
    assert!(first.is_some());
    assert!(now(elements("b"), &admission).is_none());
    assert!(now(asked(1, "b", 1 << 10), &admission).unwrap().is_ok());
    drop(first);
    assert!(now(elements("b"), &admission).unwrap().is_ok());
}
