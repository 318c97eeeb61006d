//! Two streams of one node: the later one counts.

use tokio::net::TcpStream;

use super::*;

/// The registry's view of the only worker.
fn believed(hub: &Hub) -> Vec<Phase> {
    let link = hub.registry.claim(UID);
    link.all_reports()
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
async fn reports_of_another_stream_do_not_stand_in_the_way() {
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
    // Its task ends too, whatever its daemon does: the hub accepts nothing more from it.
    former.tx.closed().await;
    assert_eq!(hub.registry.connected(), 1);
}

/// A channel to the hub for one connection, and the task that carries it.
async fn relay(hub: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let carried = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(hub).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    (address, carried)
}

#[tokio::test]
async fn a_node_keeps_one_connection_whatever_it_opens() {
    let mut hub = Hub::start().await;
    let direct = hub.address;
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (way, carried) = relay(direct).await;
        hub.address = way;
        // The client stays, and would keep the connection.
        let mut client = hub.client().await;
        let (tx, messages) = mpsc::channel(4);
        let kind = Some(node_message::Kind::Hello(hello(vec![])));
        tx.send(pb::NodeMessage { kind }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(messages));
        let authorization = format!("Bearer {}", hub.cluster.token("n1"));
        let metadata = request.metadata_mut();
        metadata.insert("authorization", authorization.parse().unwrap());
        let mut rx = client.connect(request).await.unwrap().into_inner();
        assert!(rx.message().await.unwrap().is_some());
        kept.push((client, tx, rx, carried));
    }
    let (_client, _tx, _rx, last) = kept.pop().unwrap();
    for (_client, _tx, _rx, carried) in &mut kept {
        let ended = tokio::time::timeout(Duration::from_secs(30), carried).await;
        ended.expect("its connection ends with its stream").unwrap();
    }
    assert!(!last.is_finished(), "the present one is open");
    assert_eq!(hub.registry.connected(), 1);
}
