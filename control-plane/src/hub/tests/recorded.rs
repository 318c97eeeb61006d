//! Plays back messages of older daemons: the hub understands them, and sends nothing that these
//! daemons do not know.

#[path = "../../../../proto/recorded/read.rs"]
mod read;

use super::*;

/// Waits until both workers have these phases.
async fn wait_for_phases(link: &crate::hub::GroupLink, wanted: [Phase; 2]) {
    let all = async {
        loop {
            let phases: Vec<Phase> = link
                .all_reports()
                .iter()
                .map(|(_, report)| report.phase)
                .collect();
            if phases == wanted {
                return;
            }
            link.changed().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), all).await;
    assert!(waited.is_ok(), "{:?} never became {wanted:?}", link.all_reports());
}

async fn plays(protocol: u32, recording: &str) {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let mut messages = read::messages(recording);
    let (tx, said) = mpsc::channel(1);
    tx.send(messages.next().unwrap()).await.unwrap();
    let mut rx = hub.says_bytes("n1", ReceiverStream::new(said)).await.unwrap();
    let mut next = async || rx.message().await.unwrap().unwrap().kind.unwrap();
    let welcome = next().await;
    assert!(
        matches!(&welcome, hub_message::Kind::Welcome(welcome) if welcome.protocol == protocol),
        "{welcome:?}"
    );
    wait_for_phases(&link, [Phase::Running, Phase::Running]).await;
    assert_eq!(link.supports_worker_restarts("n1"), protocol >= 2);
    let exit = lockstep_core::restart::Exit { code: 1, signal: 0 };
    tx.send(messages.next().unwrap()).await.unwrap();
    wait_for_phases(&link, [Phase::Exited(exit), Phase::Running]).await;
    link.publish(published(1));
    assert!(matches!(next().await, hub_message::Kind::Desired(desired) if desired.groups[0].generation == 1));
    tx.send(messages.next().unwrap()).await.unwrap();
    wait_for_phases(&link, [Phase::Parked, Phase::Parked]).await;
    for message in messages {
        tx.send(message).await.unwrap();
    }
    wait_for_phases(&link, [Phase::Running, Phase::Running]).await;
    for (_, report) in link.all_reports() {
        assert_eq!((report.generation, report.node.as_str()), (Generation(1), "n1"));
    }
    assert_eq!(hub.refusals.count("malformed"), 0);
    assert_eq!(hub.registry.connected(), 1);
}

#[tokio::test]
async fn a_daemon_of_protocol_1() {
    plays(
        1,
        include_str!("../../../../proto/recorded/protocol-1-daemon.hex"),
    )
    .await;
}

#[tokio::test]
async fn a_daemon_of_protocol_2() {
    plays(
        2,
        include_str!("../../../../proto/recorded/protocol-2-daemon.hex"),
    )
    .await;
}

#[tokio::test]
async fn a_daemon_of_protocol_3_that_numbers_no_tokens() {
    plays(
        3,
        include_str!("../../../../proto/recorded/protocol-3-daemon.hex"),
    )
    .await;
}
