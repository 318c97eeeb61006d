use futures::FutureExt;

use super::*;

/// The number of free turns.
fn all_of(turns: &Turns, namespace: &str, weight: u32) -> Vec<Turn> {
    std::iter::from_fn(|| turns.take(namespace, weight).now_or_never()).collect()
}

#[tokio::test]
async fn a_namespace_has_its_part_and_leaves_the_rest_to_others() {
    let turns = Turns::new(4, 2);
    let evil = all_of(&turns, "evil", 1);
    assert_eq!(evil.len(), 2);
    assert_eq!(all_of(&turns, "good", 1).len(), 2);
    drop(evil);
    assert_eq!(all_of(&turns, "evil", 1).len(), 2);
    assert_eq!(
        turns.lines.lock().unwrap().len(),
        1,
        "a namespace without turns is forgotten"
    );
}

#[tokio::test]
async fn who_waits_in_its_own_line_takes_no_place_from_others() {
    let turns = Turns::new(2, 1);
    let first = turns.take("evil", 1).await;
    let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take("evil", 1))).collect();
    assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
    assert!(turns.take("good", 1).now_or_never().is_some());
    drop(first);
    assert!(waiting[0].as_mut().now_or_never().is_some());
}

#[tokio::test]
async fn what_weighs_more_than_there_is_takes_all_that_its_namespace_may_have() {
    let turns = Turns::new(8, 4);
    let heavy = turns.take("ns", 1_000).await;
    assert!(turns.take("ns", 1).now_or_never().is_none());
    assert_eq!(all_of(&turns, "other", 1).len(), 4);
    drop(heavy);
    assert_eq!(all_of(&turns, "ns", 3).len(), 1);
}

#[tokio::test]
async fn who_does_not_want_to_wait_has_a_turn_at_once_or_none() {
    let turns = Turns::new(4, 3);
    let first = turns.try_take("evil", 3).unwrap();
    assert!(turns.try_take("evil", 1).is_none());
    assert!(turns.try_take("good", 2).is_none());
    assert!(turns.try_take("good", 1).is_some());
    drop(first);
    assert!(turns.try_take("good", 2).is_some());
}
