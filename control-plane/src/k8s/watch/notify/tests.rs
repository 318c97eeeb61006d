use std::{
    future::Future,
    task::{Context, Poll, Waker},
};

use super::*;

fn poll<T: Eq + Hash + Clone>(notified: &mut Notified<T>) -> Poll<Option<T>> {
    let mut next = std::pin::pin!(notified.next());
    next.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_key_added_twice_comes_out_once_and_again_after_the_next_add() {
    let (notifier, mut notified) = channel();
    notifier.add("a");
    notifier.add("b");
    notifier.add("a");
    assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
    assert_eq!(poll(&mut notified), Poll::Ready(Some("b")));
    assert_eq!(poll(&mut notified), Poll::Pending);
    notifier.add("a");
    assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
}

#[test]
fn what_is_left_is_drained_before_the_end() {
    let (notifier, mut notified) = channel();
    notifier.extend(["a", "b"]);
    drop(notifier.clone());
    drop(notifier);
    assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
    assert_eq!(poll(&mut notified), Poll::Ready(Some("b")));
    assert_eq!(poll(&mut notified), Poll::Ready(None));
}

#[tokio::test]
async fn a_waiting_consumer_is_woken_by_a_key_and_by_the_end() {
    let (notifier, mut notified) = channel();
    let consumer = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(key) = notified.next().await {
            seen.push(key);
        }
        seen
    });
    tokio::task::yield_now().await;
    notifier.add(1);
    tokio::task::yield_now().await;
    notifier.add(2);
    drop(notifier);
    assert_eq!(consumer.await.unwrap(), [1, 2]);
}
