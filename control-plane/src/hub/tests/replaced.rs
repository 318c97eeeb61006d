//! Two streams of one node: the later one speaks for it.

use super::*;

/// What the registry believes of the one worker.
fn believed(hub: &Hub) -> Vec<Phase> {
    let link = hub.registry.claim(UID);
    link.reports()
        .into_iter()
        .map(|(_, report)| report.phase)
        .collect()
}

#[tokio::test]
async fn a_stream_that_was_replaced_has_no_say_any_more() {
    let hub = Hub::start().await;
    let former = hub.says("n1", worker(pb::Phase::Running, 0, 1));
    let present = hub.says("n1", worker(pb::Phase::Running, 0, 2));
    hub.registry
        .report("n1", former, vec![worker(pb::Phase::Lost, 0, 9)]);
    assert_eq!(believed(&hub), [Phase::Running]);
    hub.registry.disconnect("n1", former);
    assert_eq!(believed(&hub), [Phase::Running]);
    hub.registry.disconnect("n1", present);
    assert_eq!(believed(&hub), [Phase::Unlinked]);
}

#[tokio::test]
async fn what_another_stream_has_said_does_not_stand_in_the_way() {
    let hub = Hub::start().await;
    hub.says("n1", worker(pb::Phase::Parked, 0, u64::MAX));
    // In the snapshot, and not in the snapshot.
    hub.says("n1", worker(pb::Phase::Running, 0, 1));
    assert_eq!(believed(&hub), [Phase::Running]);
    hub.says("n1", worker(pb::Phase::Parked, 0, u64::MAX));
    let session = hub.registry.connect(
        "n1",
        &Outbox::new(pb::Welcome::default()),
        *NODE_PROTOCOL.end(),
        vec![],
    );
    assert_eq!(believed(&hub), [Phase::Unlinked]);
    hub.registry
        .report("n1", session, vec![worker(pb::Phase::Running, 0, 1)]);
    assert_eq!(believed(&hub), [Phase::Running]);
}

#[tokio::test]
async fn a_stream_that_was_replaced_ends() {
    let hub = Hub::start().await;
    let mut former = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(former.next().await, hub_message::Kind::Welcome(_)));
    let mut present = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(present.next().await, hub_message::Kind::Welcome(_)));
    assert!(former.rx.message().await.unwrap().is_none());
    // Its task too, whatever its daemon does: nothing more is taken from it.
    former.tx.closed().await;
    assert_eq!(hub.registry.connected(), 1);
}
