use futures::FutureExt as _;

use super::*;

/// How many requests of this namespace may be sent now.
fn window(pace: &CreatePace, namespace: &str) -> usize {
    let mut flights = Vec::new();
    while let Some(entered) = pace.enter(namespace).now_or_never() {
        match entered {
            Ok(flight) => flights.push(flight),
            Err(Blocked(_)) => return 0,
        }
    }
    flights.len()
}

#[tokio::test(start_paused = true)]
async fn a_namespace_begins_with_one_request_and_doubles_with_each_success() {
    let pace = CreatePace::default();
    for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
        assert_eq!(window(&pace, "ns"), expected);
        pace.enter("ns").await.unwrap().landed(Outcome::Accepted);
    }
    assert_eq!(window(&pace, "other"), 1);
    tokio::time::advance(IDLE.0).await;
    assert_eq!(window(&pace, "ns"), 1);
}

/// Has a namespace send requests that are accepted at once, until it may send many at a time.
async fn grow(pace: &CreatePace, namespace: &str) {
    while window(pace, namespace) < MOST {
        pace.enter(namespace).await.unwrap().landed(Outcome::Accepted);
    }
}

/// Has a namespace send a request that is answered after this long.
async fn answered(pace: &CreatePace, after: Duration, outcome: Outcome) {
    let flight = pace.enter("ns").await.unwrap();
    tokio::time::advance(after).await;
    flight.landed(outcome);
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_a_namespace_pauses_for_four_times_as_long() {
    let pace = CreatePace::default();
    grow(&pace, "ns").await;
    answered(&pace, Duration::from_millis(1_900), Outcome::Refused).await;
    let began = Instant::now();
    let flight = pace.enter("ns").await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 4 * 1_900);
    assert_eq!(window(&pace, "ns"), 0, "one at a time");
    flight.landed(Outcome::Accepted);
    assert_eq!(window(&pace, "ns"), 2);
    assert_eq!(window(&pace, "other"), 1);

    answered(&pace, Duration::ZERO, Outcome::Refused).await;
    assert_eq!(window(&pace, "ns"), 1, "a refusal at once causes no pause");
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_accepted_late_slow_a_namespace_down_but_leave_it_a_few_at_a_time() {
    let pace = CreatePace::default();
    grow(&pace, "ns").await;
    for expected in [32, 16, 8, 4, 4] {
        answered(&pace, LATE, Outcome::Accepted).await;
        assert_eq!(window(&pace, "ns"), expected);
    }
    answered(&pace, Duration::ZERO, Outcome::Refused).await;
    answered(&pace, LATE, Outcome::Accepted).await;
    assert_eq!(window(&pace, "ns"), 1, "it is not sped up");
}

#[tokio::test(start_paused = true)]
async fn pauses_add_up_and_the_next_burst_is_half_as_large() {
    let pace = CreatePace::default();
    grow(&pace, "ns").await;
    for most in [32, 16, 8] {
        let mut burst = Vec::new();
        while let Some(entered) = pace.enter("ns").now_or_never() {
            burst.push(entered.unwrap());
        }
        assert_eq!(burst.len(), 2 * most);
        tokio::time::advance(SOON).await;
        let began = Instant::now();
        for flight in burst {
            flight.landed(Outcome::Refused);
        }
        let flight = pace.enter("ns").await.unwrap();
        assert_eq!(began.elapsed(), SOON * PAUSE * u32::try_from(2 * most).unwrap());
        flight.landed(Outcome::Accepted);
        while window(&pace, "ns") < most {
            pace.enter("ns").await.unwrap().landed(Outcome::Accepted);
        }
        assert_eq!(window(&pace, "ns"), most);
        pace.enter("ns").await.unwrap().landed(Outcome::Accepted);
        assert_eq!(window(&pace, "ns"), most, "it grows slowly from there");
    }
    tokio::time::advance(IDLE.0).await;
    assert_eq!(window(&pace, "ns"), 8, "a minute does not make up for it");
    tokio::time::advance(IDLE.1).await;
    assert_eq!(window(&pace, "ns"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_says_nothing_about_the_object_never_speeds_up_or_blocks() {
    let pace = CreatePace::default();
    for _ in 0..2 {
        answered(&pace, Duration::ZERO, Outcome::Passing).await;
        assert_eq!(window(&pace, "ns"), 1);
    }
    grow(&pace, "ns").await;
    answered(&pace, Duration::from_millis(99), Outcome::Passing).await;
    assert_eq!(window(&pace, "ns"), MOST);
    answered(&pace, Duration::from_secs(60), Outcome::Passing).await;
    let began = Instant::now();
    assert!(pace.enter("ns").await.is_ok());
    assert_eq!(began.elapsed(), WAIT.0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_late_counts_as_refused() {
    let pace = CreatePace::default();
    grow(&pace, "ns").await;
    let flights = [pace.enter("ns").await.unwrap(), pace.enter("ns").await.unwrap()];
    let [soon, late] = flights;
    drop(soon);
    assert_eq!(window(&pace, "ns"), MOST - 1);
    tokio::time::advance(LATE).await;
    drop(late);
    let began = Instant::now();
    assert!(pace.enter("ns").await.is_ok());
    assert_eq!(began.elapsed(), LATE * PAUSE);
}

#[tokio::test(start_paused = true)]
async fn slow_refusals_block_a_namespace_for_longer_each_time() {
    let pace = CreatePace::default();
    for wait in [30, 60, 120, 240, 480, 600, 600] {
        answered(&pace, SLOW, Outcome::Refused).await;
        let blocked = pace.enter("ns").await.map(drop);
        assert_eq!(blocked, Err(Blocked(Duration::from_secs(wait))));
        assert_eq!(window(&pace, "other"), 1);
        tokio::time::advance(Duration::from_secs(wait)).await;
        assert_eq!(window(&pace, "ns"), 1);
    }
    answered(&pace, Duration::ZERO, Outcome::Accepted).await;
    assert_eq!(window(&pace, "ns"), 2);
    answered(&pace, SLOW, Outcome::Refused).await;
    let blocked = pace.enter("ns").await.map(drop);
    assert_eq!(
        blocked,
        Err(Blocked(WAIT.1)),
        "one that is accepted makes up for nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_refused_together_block_a_namespace_once() {
    let pace = CreatePace::default();
    for _ in 0..2 {
        pace.enter("ns").await.unwrap().landed(Outcome::Accepted);
    }
    let burst = [
        pace.enter("ns").await.unwrap(),
        pace.enter("ns").await.unwrap(),
        pace.enter("ns").await.unwrap(),
    ];
    for flight in burst {
        tokio::time::advance(SLOW).await;
        flight.landed(Outcome::Refused);
    }
    tokio::time::advance(WAIT.0).await;
    assert_eq!(window(&pace, "ns"), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_goes_on_when_another_ends_even_if_that_is_dropped() {
    let pace = CreatePace::default();
    let first = pace.enter("ns").await.unwrap();
    let second = pace.enter("ns");
    tokio::pin!(second);
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    assert!(second.await.is_ok());
    assert_eq!(window(&pace, "ns"), 1);
}

fn request(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(path).body(()).unwrap()
}

#[test]
fn only_creations_in_a_namespace_and_marked_changes_count() {
    for path in [
        "/apis/batch/v1/namespaces/ns/jobs?a=b",
        "/api/v1/namespaces/ns/services",
    ] {
        assert_eq!(namespace_of(&request(Method::POST, path)), Some("ns"));
    }
    let mut change = request(Method::PATCH, "/apis/batch/v1/namespaces/ns/jobs/j");
    assert_eq!(namespace_of(&change), None);
    change.extensions_mut().insert(Paced);
    assert_eq!(namespace_of(&change), Some("ns"));
    for (method, path) in [
        (Method::PUT, "/apis/batch/v1/namespaces/ns/jobs/j"),
        (Method::POST, "/apis/events.k8s.io/v1/namespaces/ns/events"),
        (
            Method::POST,
            "/apis/scheduling.k8s.io/v1alpha2/namespaces/ns/podgroups",
        ),
        (Method::POST, "/api/v1/namespaces/ns/pods/p/eviction"),
        (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews"),
        (Method::POST, "/api/v1/namespaces"),
    ] {
        assert_eq!(
            namespace_of(&request(method.clone(), path)),
            None,
            "{method} {path}"
        );
    }
}
