use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

const METRICS: Action = Action::Get("/metrics");
const HERE: &str = "10.0.0.1";

/// An API server that knows the tokens `reader` and `stranger`, allows `reader` to read, and counts
/// requests.
pub(in crate::net::serve) fn api_server() -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let answer = service_fn(move |request: Request<Body>| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            let bytes = request.into_body().collect_bytes().await?;
            let question: Value = serde_json::from_slice(&bytes).unwrap();
            let body = serde_json::to_vec(&reply(&question)).unwrap();
            Ok::<_, Error>(Response::new(Body::from(body)))
        }
    });
    (Client::new(answer, "default"), asked)
}

fn reply(question: &Value) -> Value {
    let mut answer = question.clone();
    answer["metadata"] = json!({});
    answer["status"] = match question["kind"].as_str() {
        Some("TokenReview") => match question["spec"]["token"].as_str().unwrap() {
            known @ ("reader" | "stranger") => {
                json!({"authenticated": true, "user": {"username": known, "groups": ["people"]}})
            }
            _ => json!({"authenticated": false}),
        },
        _ if question["spec"]["resourceAttributes"].is_object() => {
            let action = &question["spec"]["resourceAttributes"];
            assert_eq!(
                (&action["group"], &action["resource"]),
                (&json!("jobset.x-k8s.io"), &json!("jobsets"))
            );
            json!({"allowed": action["verb"] == "list" && action["namespace"] == "ours"})
        }
        _ => {
            assert_eq!(
                question["spec"]["nonResourceAttributes"],
                json!({"path": "/metrics", "verb": "get"})
            );
            assert_eq!(question["spec"]["groups"], json!(["people"]));
            json!({"allowed": question["spec"]["user"] == "reader"})
        }
    };
    answer
}

#[tokio::test(start_paused = true)]
async fn the_api_server_decides_and_is_believed_for_a_while() {
    let (client, asked) = api_server();
    let access = AccessChecker::new(client);
    let denied = Verdict::Denied("stranger".to_owned());
    for (token, verdict, questions) in [
        ("reader", Verdict::Allowed, 2),
        ("reader", Verdict::Allowed, 0),
        ("stranger", denied.clone(), 2),
        ("stranger", denied.clone(), 0),
        ("nobody", Verdict::Unknown, 1),
        ("nobody", Verdict::Unknown, 0),
    ] {
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(
            access.check(HERE, token, &METRICS).await.unwrap(),
            verdict,
            "{token}"
        );
        assert_eq!(asked.load(Ordering::Relaxed) - before, questions, "{token}");
    }
    tokio::time::advance(BELIEVED.1).await;
    let before = asked.load(Ordering::Relaxed);
    access.check(HERE, "reader", &METRICS).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), before);
    access.check(HERE, "stranger", &METRICS).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), before + 2);
    tokio::time::advance(BELIEVED.0).await;
    access.check(HERE, "reader", &METRICS).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), before + 4);
}

#[tokio::test(start_paused = true)]
async fn guessing_fills_no_memory() {
    let (client, _) = api_server();
    let access = AccessChecker::new(client);
    access.check(HERE, "reader", &METRICS).await.unwrap();
    for guess in 0..2 * REMEMBERED {
        assert_eq!(
            access.check(HERE, &guess.to_string(), &METRICS).await.unwrap(),
            Verdict::Unknown
        );
    }
    assert_eq!(access.locked().len(), REMEMBERED);
    let reader = digest("reader", &METRICS);
    assert_eq!(
        access.remembered(&reader),
        Some(Verdict::Allowed),
        "guesses displace guesses"
    );
}

#[tokio::test(start_paused = true)]
async fn each_wish_is_a_question_of_its_own() {
    let (client, asked) = api_server();
    let access = AccessChecker::new(client);
    let action = |verb, namespace: &str| Action::JobSets {
        verb,
        namespace: namespace.to_owned(),
        name: String::new(),
    };
    let denied = Verdict::Denied("stranger".to_owned());
    for _ in 0..2 {
        for (action, verdict) in [
            (action("list", "ours"), Verdict::Allowed),
            (action("list", ""), denied.clone()),
            (action("patch", "ours"), denied.clone()),
            (METRICS, denied.clone()),
        ] {
            assert_eq!(
                access.check(HERE, "stranger", &action).await.unwrap(),
                verdict,
                "{action:?}"
            );
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 8);
}

#[tokio::test]
async fn many_requests_from_one_address_delay_no_other_address() {
    // An API server that answers on the test's signal.
    let gate = Arc::new(Semaphore::new(0));
    let (asked, guard) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gate));
    let counter = Arc::clone(&asked);
    let answer = service_fn(move |request: Request<Body>| {
        let guard = Arc::clone(&guard);
        let counter = Arc::clone(&counter);
        async move {
            let bytes = request.into_body().collect_bytes().await?;
            let question: Value = serde_json::from_slice(&bytes).unwrap();
            let guess = question["spec"]["token"]
                .as_str()
                .is_some_and(|token| token.starts_with("guess"));
            counter.fetch_add(1, Ordering::Relaxed);
            if guess {
                guard.acquire().await.unwrap().forget();
            }
            let body = serde_json::to_vec(&reply(&question)).unwrap();
            Ok::<_, Error>(Response::new(Body::from(body)))
        }
    });
    let access = Arc::new(AccessChecker::new(Client::new(answer, "default")));
    const PLACES: usize = callers::AT_ONCE + callers::WAITING;
    let guesses: Vec<_> = (0..PLACES)
        .map(|number| {
            let access = Arc::clone(&access);
            tokio::spawn(async move { access.check(HERE, &format!("guess {number}"), &METRICS).await })
        })
        .collect();
    while asked.load(Ordering::Relaxed) < callers::AT_ONCE || access.callers.question(HERE).is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        access.check(HERE, "guess once more", &METRICS).await.unwrap(),
        Verdict::TooMany
    );
    // No further requests of this address are sent, and another address is answered meanwhile.
    let other = access.check("10.0.0.2", "reader", &METRICS).await.unwrap();
    assert_eq!(other, Verdict::Allowed);
    assert_eq!(asked.load(Ordering::Relaxed), callers::AT_ONCE + 2);
    // A cached answer needs no review.
    assert_eq!(
        access.check(HERE, "reader", &METRICS).await.unwrap(),
        Verdict::Allowed
    );
    gate.add_permits(PLACES);
    for guess in guesses {
        assert_eq!(guess.await.unwrap().unwrap(), Verdict::Unknown);
    }
    assert_eq!(access.callers.known(), 0);
    // A caller that gives up frees its place.
    let mut given_up = Box::pin(access.check(HERE, "guess again", &METRICS));
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    assert_eq!(access.callers.known(), 0);
}
