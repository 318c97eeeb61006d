use futures::FutureExt as _;
use futures::task::noop_waker;

use super::*;

fn network(number: u32) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::from_bits(number))
}

fn is_lost(slot: &Slot) -> bool {
    slot.poll_lost(&Context::from_waker(&noop_waker())).is_ready()
}

#[tokio::test(start_paused = true)]
async fn a_network_with_many_places_gives_its_oldest_to_one_with_few() {
    let slots = ConnectionSlots::new(4);
    let many = [
        slots.take(network(1)).await,
        slots.take(network(1)).await,
        slots.take(network(1)).await,
    ];
    let few = slots.take(network(2)).await;
    let second = slots.take(network(2)).now_or_never();
    assert!(second.is_some());
    assert_eq!(many.each_ref().map(is_lost), [true, false, false]);
    // From now on it would lose as many slots as it gains.
    assert!(slots.take(network(1)).now_or_never().is_none());
    assert!(slots.take(network(2)).now_or_never().is_none());
    assert!(!is_lost(&few));
    // Each network gets the slot that it freed.
    drop(few);
    assert!(slots.take(network(2)).now_or_never().is_some());
    drop((many, second));
    assert!(slots.lock().by_network.is_empty() && slots.lock().by_age.is_empty());
}

#[tokio::test(start_paused = true)]
async fn among_equals_a_waiter_takes_the_slot_that_was_held_longest() {
    let slots = ConnectionSlots::new(100);
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(slots.take(network(number)).await);
    }
    let began = Instant::now();
    let late = slots.take(network(100)).await;
    assert!(began.elapsed() >= UNDISTURBED && began.elapsed() <= UNDISTURBED + AGAIN);
    assert!(is_lost(&held[0]) && !held[1..].iter().any(is_lost));
    drop(late);
    // A freed slot is taken at once.
    let (waited, ()) = tokio::join!(
        async {
            let _all: Vec<_> = [slots.take(network(101)).await, slots.take(network(102)).await].into();
            began.elapsed()
        },
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            held.truncate(50);
        }
    );
    assert!(
        waited <= UNDISTURBED + AGAIN + Duration::from_millis(10),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn small_networks_keep_their_slots_while_large_ones_take_from_each_other() {
    let slots = ConnectionSlots::new(5);
    let few = slots.take(network(1)).await;
    let mut many = Vec::new();
    for number in [2, 2, 3, 3] {
        many.push(slots.take(network(number)).await);
    }
    for _ in 0..20 {
        many.push(slots.take(network(2)).await);
        many.push(slots.take(network(3)).await);
        many.retain(|slot| !is_lost(slot));
    }
    assert!(!is_lost(&few));
}

#[tokio::test(start_paused = true)]
async fn the_loser_of_a_slot_is_woken() {
    let slots = ConnectionSlots::new(2);
    let kept = slots.take(network(1)).await;
    let lost = slots.take(network(1)).await;
    drop(kept);
    let kept = slots.take(network(1)).await;
    let told = std::future::poll_fn(|cx| lost.poll_lost(cx));
    let (other, ()) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            slots.take(network(2)).await
        },
        told
    );
    assert!(!is_lost(&kept) && !is_lost(&other));
}

#[tokio::test(start_paused = true)]
async fn a_place_with_an_open_stream_is_kept() {
    let slots = ConnectionSlots::new(3);
    let (streaming, idle) = (slots.take(network(1)).await, slots.take(network(1)).await);
    let stream = streaming.in_use();
    let other = slots.take(network(1)).await;
    let few = slots.take(network(2)).await;
    assert!(!is_lost(&streaming) && is_lost(&idle));
    // All other connections are closed before it, and it can be closed again once the stream has
    // ended.
    drop(idle);
    let second = slots.take(network(3)).await;
    assert!(!is_lost(&streaming) && is_lost(&other));
    let waits = slots.take(network(4)).await;
    assert!(!is_lost(&streaming) && (is_lost(&few) || is_lost(&second)));
    drop(stream);
    let third = slots.take(network(5)).await;
    assert!(is_lost(&streaming) && !is_lost(&third) && !is_lost(&waits));
}
