use std::time::Duration;

use tokio::time::timeout;

use super::*;

/// The events that are taken from the queue.
async fn all(receiver: &mut Receiver<&'static str, u32>) -> Vec<u32> {
    let mut all = Vec::new();
    while let Ok(Some(turn)) = timeout(Duration::from_secs(1), receiver.next()).await {
        all.push(turn.event);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_storm_in_one_namespace_keeps_nobody_elses_events_out_or_waiting() {
    let (sender, mut receiver) = queue();
    let kept = (0..100_000).filter(|event| sender.add("storm", "a", *event).is_ok());
    assert_eq!(kept.count(), MOST_OF_ONE);
    for event in 0..3 {
        sender.add("calm", "b", 1_000_000 + event).unwrap();
    }
    let taken = all(&mut receiver).await;
    assert_eq!(taken.len(), MOST_OF_ONE + 3);
    assert_eq!(taken[..7], [0, 1_000_000, 1, 1_000_001, 2, 1_000_002, 3]);
}

#[tokio::test(start_paused = true)]
async fn storms_in_many_namespaces_leave_room_for_one_more_and_no_more_wait_than_fit() {
    let (sender, mut receiver) = queue();
    for tenant in 0..10 {
        for event in 0..MOST_OF_ONE {
            let _ = sender.add(&format!("storm-{tenant}"), "a", u32::try_from(event).unwrap());
        }
    }
    assert_eq!(receiver.0.locked().len, MOST);
    sender.add("calm", "b", 1_000_000).unwrap();
    assert_eq!(receiver.0.locked().len, MOST);
    let taken = all(&mut receiver).await;
    assert_eq!(taken.len(), MOST);
    let turn = taken.iter().position(|event| *event == 1_000_000).unwrap();
    assert!(turn <= 10, "{turn}");
    let state = receiver.0.locked();
    assert!(state.waiting.is_empty() && state.turns.is_empty() && state.busy.is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_about_one_object_are_written_one_after_the_other_and_others_beside_them() {
    let (sender, mut receiver) = queue();
    for (namespace, object, event) in [("one", "a", 1), ("one", "a", 2), ("other", "b", 3)] {
        sender.add(namespace, object, event).unwrap();
    }
    let first = receiver.next().await.unwrap();
    let beside = receiver.next().await.unwrap();
    assert_eq!((first.event, beside.event), (1, 3));
    let waits = timeout(Duration::from_secs(1), receiver.next()).await;
    assert!(waits.is_err());
    drop(first);
    assert_eq!(receiver.next().await.unwrap().event, 2);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_nobody_is_left_to_add_anything_and_nothing_waits() {
    let (sender, mut receiver) = queue();
    let another = sender.clone();
    sender.add("ns", "a", 1).unwrap();
    drop(sender);
    assert!(receiver.next().await.is_some());
    let waits = timeout(Duration::from_secs(1), receiver.next()).await;
    assert!(waits.is_err());
    drop(another);
    assert!(receiver.next().await.is_none());
}
