use futures::FutureExt as _;
use tokio::time::advance;

use super::*;

fn begin(arrivals: &Arrivals) -> Arrival {
    arrivals.begin("10.0.0.1", SenderClass::Other, 100)
}

fn takes(arrival: &Arrival, bytes: usize) -> bool {
    arrival.grow(bytes).now_or_never().is_some()
}

fn is_cut(arrival: &Arrival) -> bool {
    arrival.cut_off().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn memory_is_taken_for_what_arrives_and_given_back() {
    let arrivals = Arrivals::new(100);
    let (first, second) = (begin(&arrivals), begin(&arrivals));
    assert!(takes(&first, 60) && takes(&second, 40));
    assert!(!takes(&second, 1));
    drop(first);
    assert!(takes(&second, 60));
}

#[tokio::test(start_paused = true)]
async fn the_slowest_makes_room_and_no_more_than_is_needed() {
    let arrivals = Arrivals::new(100);
    let (slowest, slow) = (begin(&arrivals), begin(&arrivals));
    assert!(takes(&slowest, 40) && takes(&slow, 50));
    advance(WINDOW / 2).await;
    let fast = begin(&arrivals);
    assert!(takes(&fast, 10));
    assert!(!takes(&fast, 10));
    assert!(is_cut(&slowest) && !is_cut(&slow) && !is_cut(&fast));
    // Its task drops it.
    drop(slowest);
    assert!(takes(&fast, 10));
}

#[tokio::test(start_paused = true)]
async fn one_that_came_fast_and_stalls_is_the_slowest() {
    let arrivals = Arrivals::new(1000);
    let stalls = begin(&arrivals);
    assert!(takes(&stalls, 1000));
    advance(WINDOW).await;
    let begins = begin(&arrivals);
    assert!(!takes(&begins, 1));
    assert!(is_cut(&stalls));
}

#[tokio::test(start_paused = true)]
async fn no_body_is_cut_off_in_vain() {
    let arrivals = Arrivals::new(100);
    let (kept, small) = (begin(&arrivals), begin(&arrivals));
    assert!(takes(&kept, 90) && kept.keep() && takes(&small, 10));
    advance(WINDOW).await;
    let large = begin(&arrivals);
    assert!(!takes(&large, 20));
    assert!(!is_cut(&small));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_kept_is_not_cut_off() {
    let arrivals = Arrivals::new(100);
    let (kept, cut) = (begin(&arrivals), begin(&arrivals));
    assert!(takes(&kept, 50) && takes(&cut, 50));
    assert!(kept.keep());
    advance(WINDOW / 2).await;
    let fast = begin(&arrivals);
    assert!(!takes(&fast, 50));
    assert!(is_cut(&cut) && !is_cut(&kept));
    assert!(!cut.keep());
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_memory_is_not_slow_for_it() {
    let arrivals = Arrivals::new(100);
    let (kept, waits, later) = (begin(&arrivals), begin(&arrivals), begin(&arrivals));
    assert!(takes(&waits, 20) && takes(&kept, 80) && kept.keep());
    let grown = waits.grow(20);
    let grown = std::pin::pin!(grown);
    let mut grown = grown;
    assert!(grown.as_mut().now_or_never().is_none());
    advance(WINDOW / 2).await;
    drop(kept);
    grown.await;
    assert!(takes(&later, 60));
    assert!(!takes(&later, 10));
    assert!(!is_cut(&waits));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_waits_for_its_review_makes_room_for_a_sender_that_holds_less() {
    let arrivals = Arrivals::new(100);
    let of = |sender: &str, declared| arrivals.begin(sender, SenderClass::Other, declared);
    let (large, small) = (of("a", 60), of("b", 30));
    for (arrival, bytes) in [(&small, 30), (&large, 60)] {
        assert!(takes(arrival, bytes));
        arrival.whole();
    }
    advance(WINDOW).await;
    let begins = of("c", 60);
    assert!(takes(&begins, 10));
    assert!(!takes(&begins, 50));
    assert!(!is_cut(&large) && !is_cut(&small), "it would hold as much itself");
    drop(begins);
    let begins = of("c", 20);
    assert!(!takes(&begins, 20));
    assert!(is_cut(&large) && !is_cut(&small));
}

#[tokio::test(start_paused = true)]
async fn one_that_arrives_slowly_makes_room_before_one_that_has_arrived() {
    let arrivals = Arrivals::new(100);
    let (whole, slow) = (
        arrivals.begin("a", SenderClass::Other, 60),
        arrivals.begin("b", SenderClass::Other, 60),
    );
    assert!(takes(&whole, 60) && takes(&slow, 40));
    whole.whole();
    advance(WINDOW).await;
    let begins = arrivals.begin("c", SenderClass::Other, 20);
    assert!(!takes(&begins, 20));
    assert!(is_cut(&slow) && !is_cut(&whole));
}

#[tokio::test(start_paused = true)]
async fn what_an_api_server_sends_makes_others_go_and_never_goes_for_them() {
    let arrivals = Arrivals::new(100);
    let of_server = arrivals.begin("server", SenderClass::ApiServer, 60);
    let others = ["a", "b"].map(|sender| arrivals.begin(sender, SenderClass::Other, 30));
    assert!(takes(&of_server, 40));
    assert!(others.iter().all(|other| takes(other, 30)));
    // Another sender may be fast, and the server slow.
    advance(WINDOW).await;
    let fast = arrivals.begin("c", SenderClass::Other, 40);
    assert!(!takes(&fast, 40));
    assert!(!is_cut(&of_server));
    assert!(!takes(&of_server, 20));
    assert!(others.iter().any(is_cut));
}
