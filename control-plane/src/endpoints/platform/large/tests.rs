use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use http_body_util::Full;

use tokio::runtime::Handle;
use tokio::time::advance;

use super::*;

fn large(kib: usize) -> Size {
    Size {
        is_large: true,
        bytes: kib * KIB - 1,
    }
}

#[tokio::test]
async fn what_is_not_read_has_a_bound_for_each_namespace_and_leaves_room_to_others() {
    let lines = NamespaceLines::default();
    let (evil, good) = (lines.of("evil"), lines.of("good"));
    let mut unread = Vec::new();
    while let Some(room) = evil.room(large(4 * 1024)).now_or_never() {
        unread.push(room.unwrap());
    }
    assert_eq!(unread.len(), 4);
    assert!(good.room(large(4 * 1024)).now_or_never().is_some());
    // Another call for the same namespace waits in the same line.
    assert!(lines.of("evil").room(large(1)).now_or_never().is_none());
    unread.pop();
    assert!(lines.of("evil").room(large(1)).now_or_never().is_some());
}

#[tokio::test]
async fn one_namespace_leaves_room_to_others_where_memory_is_short() {
    let lines = NamespaceLines::with_memory(56 << 20);
    let evil = lines.of("evil");
    let mut unread = Vec::new();
    while let Some(room) = evil.room(large(1024)).now_or_never() {
        unread.push(room.unwrap());
    }
    assert_eq!(unread.len(), 1);
    // Another namespace has room even for a large answer.
    let good = lines.of("good");
    assert!(good.room(large(1024 * 1024)).now_or_never().is_some());
}

#[tokio::test]
async fn tenants_that_read_nothing_leave_room_for_requests_about_all_namespaces() {
    let lines = NamespaceLines::default();
    let tenants = ["a", "b", "c", "d"].map(|namespace| lines.of(namespace));
    let mut unread = Vec::new();
    for tenant in &tenants {
        unread.extend(tenant.room(large(16 * 1024)).await);
    }
    assert!(lines.of("e").room(large(1)).now_or_never().is_none());
    assert!(lines.of("").room(large(16 * 1024)).now_or_never().is_some());
}

#[tokio::test]
async fn pages_and_messages_of_small_groups_take_room_too() {
    let line = NamespaceLines::default().of("ns");
    let group = Size::of_workers(950, Detail::Full);
    assert!(!group.is_large() && line.room(group).await.is_some());
    let page = Size::of_page([group; 500].into_iter(), 2 << 20);
    assert!(page.bytes >= 2 << 20 && page.bytes < 3 << 20, "{page:?}");
    let mut unread = Vec::new();
    while let Some(room) = line.room(page).now_or_never() {
        unread.push(room.unwrap());
    }
    assert_eq!(unread.len(), 7);
    assert!(line.room(group).now_or_never().is_some());
    // Groups without their workers are small.
    let brief = Size::of_page(
        [Size::of_workers(950, Detail::WithoutWorkers); 60].into_iter(),
        2 << 20,
    );
    assert!(line.room(brief).await.is_none());
}

#[tokio::test]
async fn the_largest_has_room_and_a_small_one_needs_none() {
    let line = NamespaceLines::default().of("ns");
    let small = Size {
        is_large: false,
        bytes: FREE,
    };
    let all = line.room(large(1024 * 1024)).await.unwrap();
    assert!(line.room(small).await.is_none());
    assert!(line.room(large(1)).now_or_never().is_none());
    drop(all);
    assert!(line.room(large(1)).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn one_large_group_is_converted_at_a_time_and_a_pause_follows() {
    let lines = NamespaceLines::default();
    let at_once = Arc::new(AtomicUsize::new(0));
    let took = Duration::from_millis(20);
    let began = Instant::now();
    let told = (0..3).map(|_| {
        let (line, at_once) = (lines.of("ns"), Arc::clone(&at_once));
        async move {
            line.in_turn(move || {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                Handle::current().block_on(advance(took));
                at_once.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        }
    });
    let told = futures::future::join_all(told).await;
    assert!(told.iter().all(Option::is_some));
    assert!(began.elapsed() >= took * 3 + took * 2 * REST);
}

#[tokio::test]
async fn an_answer_holds_its_room_until_it_is_read() {
    let line = NamespaceLines::default().of("ns");
    let room = line.room(large(16 * 1024)).await.unwrap();
    let mut answer = Response::new(Body::new(Full::new(Bytes::from_static(b"groups"))));
    answer.extensions_mut().insert(HeldRoom(Arc::new(vec![room])));
    let answer = held(answer);
    assert!(line.room(large(1)).now_or_never().is_none());
    let read = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&read[..], b"groups");
    assert!(line.room(large(1)).now_or_never().is_some());
}
