use axum::body::Body;
use axum::extract::FromRequest as _;
use futures::future::join_all;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;

use super::*;
use crate::endpoints::webhook::routes::Admission;
use crate::endpoints::webhook::tests::{admission, api_server};

fn admitting() -> Admission {
    admission(api_server(Ok(std::collections::BTreeMap::new())))
}

/// A review of this many bytes from this address.
fn asked(sender: u8, namespace: &str, bytes: usize) -> Request {
    let mut body = json!({"request": {"namespace": namespace}}).to_string();
    body.extend(std::iter::repeat_n(' ', bytes.saturating_sub(body.len())));
    sent(sender, body.len(), body.into())
}

fn sent(sender: u8, length: usize, body: Body) -> Request {
    Request::post("/")
        .header(header::CONTENT_LENGTH, length)
        .extension(PeerAddress(IpAddr::from([10, 0, 0, sender])))
        .body(body)
        .unwrap()
}

/// The body, or the status of its refusal; `None` if it waits.
fn now(request: Request, admission: &Admission) -> Option<Result<ReviewBody, StatusCode>> {
    let question = ReviewBody::from_request(request, admission).now_or_never()?;
    Some(question.map_err(|refused| refused.status()))
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_fills_its_part_is_turned_away_and_no_other_one() {
    let admission = admitting();
    let of = |sender: u8, namespace: &str| now(asked(sender, namespace, 4 << 20), &admission).unwrap();
    let first = of(1, "evil").unwrap();
    let second = ReviewBody::from_request(asked(1, "evil", 4 << 20), &admission).await;
    assert_eq!(second.err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(of(1, "good").is_ok());
    // Another sender that names it takes no room from the API server.
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
        "there is no room left"
    );
    assert!(now(asked(1, "e", 4 << 10), &admission).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_slow_sender_is_refused_and_takes_room_of_its_own_address() {
    let admission = admitting();
    let never = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow: Vec<_> = (0..100)
        .map(|_| {
            Box::pin(ReviewBody::from_request(
                sent(1, LONGEST_BODY, never()),
                &admission,
            ))
        })
        .collect();
    let slow = join_all(slow);
    let (slow, other) = tokio::join!(slow, async {
        tokio::task::yield_now().await;
        now(asked(2, "good", 4 << 20), &admission)
    });
    assert!(other.unwrap().is_ok());
    let refused = |question: Result<ReviewBody, Response>| question.err().map(|refused| refused.status());
    assert!(
        slow.into_iter()
            .all(|question| refused(question) == Some(StatusCode::REQUEST_TIMEOUT))
    );
}

#[tokio::test(start_paused = true)]
async fn whatever_many_strangers_declare_and_send_slowly_others_are_read_at_once() {
    let admission = admitting();
    for (strangers, begun) in [(240, 1), (240, 300 << 10), (16, 4 << 20)] {
        let stalling = || {
            let begun = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; begun]))]);
            Body::from_stream(begun.chain(futures::stream::pending()))
        };
        let strangers = (0..strangers).map(|stranger| {
            let request = sent(1 + stranger / 4, LONGEST_BODY, stalling());
            ReviewBody::from_request(request, &admission)
        });
        let strangers = join_all(strangers);
        let good = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let begin = tokio::time::Instant::now();
            let body = asked(200, "good", 6 << 20).into_body().into_data_stream();
            let parts = body.flat_map(|whole| {
                let whole = whole.unwrap();
                let parts: Vec<_> = whole
                    .chunks(16 << 10)
                    .map(|part| Ok(Bytes::copy_from_slice(part)))
                    .collect();
                futures::stream::iter(parts as Vec<Result<Bytes, std::io::Error>>)
            });
            let request = sent(200, 6 << 20, Body::from_stream(parts));
            let question = ReviewBody::from_request(request, &admission).await;
            assert!(question.is_ok());
            assert!(
                begin.elapsed() < Duration::from_millis(200),
                "{:?}",
                begin.elapsed()
            );
        };
        tokio::join!(strangers, good);
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_wait_for_their_namespace_take_no_memory_of_others() {
    let admission = admitting();
    let judged: Vec<_> = (1..4)
        .map(|stranger| {
            now(asked(stranger, "good", 4 << 20), &admission)
                .unwrap()
                .unwrap()
        })
        .collect();
    let waiting = (1..4).flat_map(|stranger| (0..7).map(move |_| asked(stranger, "good", 4 << 20)));
    let waiting = waiting.map(|request| ReviewBody::from_request(request, &admission));
    let good = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begin = tokio::time::Instant::now();
        let question = ReviewBody::from_request(asked(201, "good", 4 << 20), &admission).await;
        assert!(question.is_ok(), "{:?} {:?}", begin.elapsed(), question.err());
        assert!(
            begin.elapsed() < Duration::from_millis(200),
            "{:?}",
            begin.elapsed()
        );
    };
    let waiting = join_all(waiting);
    let (waiting, ()) = tokio::join!(async { timeout(Duration::from_secs(1), waiting).await }, good);
    assert!(waiting.is_err(), "they wait for those that are judged");
    drop(judged);
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

#[tokio::test(start_paused = true)]
async fn whatever_others_send_an_api_server_is_read_at_once() {
    let admission = admitting();
    admission.api_servers.set([[10, 0, 0, 200].into()]);
    assert!(now(asked(200, "good", 100), &admission).unwrap().is_ok());
    let elements = |sender: u8, namespace: &str| {
        let object = vec![1; 20_000];
        let filler = " ".repeat(4 << 20);
        let body = json!({"request": {"namespace": namespace, "object": object, "filler": filler}});
        let body = body.to_string();
        sent(sender, body.len(), body.into())
    };
    // One body is reviewed, one is read, and many wait.
    let judged = now(elements(1, "evil"), &admission).unwrap().ok();
    let large = now(asked(2, "evil", 6 << 20), &admission).unwrap().ok();
    assert!(judged.is_some() && large.is_some());
    let waiting = (3..60).map(|stranger| match stranger % 2 {
        0 => elements(stranger, "evil"),
        _ => asked(stranger, "evil", 6 << 20),
    });
    let waiting = join_all(waiting.map(|request| ReviewBody::from_request(request, &admission)));
    let good = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begin = tokio::time::Instant::now();
        for _ in 0..10 {
            let question = ReviewBody::from_request(asked(200, "good", 3 << 20), &admission).await;
            assert!(question.is_ok(), "{:?}", question.err());
        }
        assert!(
            begin.elapsed() < Duration::from_millis(100),
            "{:?}",
            begin.elapsed()
        );
        // A huge body waits for the one under review, and for none of those that wait.
        let huge = ReviewBody::from_request(elements(200, "good"), &admission);
        let (huge, ()) = tokio::join!(huge, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(judged);
        });
        assert!(huge.is_ok(), "{:?}", huge.err());
        assert!(
            begin.elapsed() < Duration::from_millis(200),
            "{:?}",
            begin.elapsed()
        );
    };
    let (_, ()) = tokio::join!(async { timeout(Duration::from_secs(3), waiting).await }, good);
    drop(large);
}

#[tokio::test(start_paused = true)]
async fn while_memory_is_short_others_than_api_servers_have_one_large_body() {
    let mut admission = admitting();
    admission.is_short = || true;
    admission.api_servers.set([[10, 0, 0, 200].into()]);
    assert!(now(asked(200, "good", 100), &admission).unwrap().is_ok());
    let first = now(asked(1, "evil", 4 << 20), &admission).unwrap().ok();
    assert!(first.is_some());
    let second = ReviewBody::from_request(asked(2, "other", 4 << 20), &admission).await;
    assert_eq!(second.err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(now(asked(1, "evil", 4 << 10), &admission).unwrap().is_ok());
    assert!(now(asked(200, "good", 4 << 20), &admission).unwrap().is_ok());
    drop(first);
    assert!(now(asked(2, "other", 4 << 20), &admission).unwrap().is_ok());
}
