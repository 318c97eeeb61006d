//! Plays back what older control planes have sent: the daemon understands it, and sends nothing
//! that they do not know.

use prost::Message as _;

use super::*;
use crate::recorded;

async fn plays(protocol: u32, recording: &str) {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let registered = Input::Registered {
        pod: "p".into(),
        id: "c".into(),
        name: "worker".into(),
        link: LinkId(1),
        pid: 1,
    };
    let mut targets = daemon
        .workers
        .linked(registered, LinkId(1), String::new())
        .await
        .unwrap();
    let mut stream = hub.stream().await;
    let hello = stream.hello().await;
    assert!((hello.protocol_min..=hello.protocol_max).contains(&protocol));
    // The target that each message makes: generation, start and release.
    let mut seen = Vec::new();
    for message in recorded::messages(recording) {
        let kind = wire::HubMessage::decode(&*message).unwrap().kind.unwrap();
        let (tells, drains) = (
            matches!(kind, FromHub::Desired(_)),
            matches!(kind, FromHub::Drain(_)),
        );
        let pings = matches!(kind, FromHub::Ping(_));
        stream.send(kind).await;
        if tells {
            targets.changed().await.unwrap();
            let target = targets.borrow_and_update().clone().unwrap();
            assert_eq!(target.epoch, Epoch(7));
            seen.push((target.generation.0, target.start_fresh, target.release));
        }
        if pings {
            loop {
                match stream.next().await {
                    ToHub::Pong(pong) => break assert_eq!(pong.nonce, 9),
                    ToHub::Report(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        if drains {
            // It reconnects elsewhere, as asked.
            hub.stream().await.hello().await;
        }
    }
    let mut expected = vec![(0, true, true), (1, false, false), (1, false, true)];
    if protocol >= 2 {
        expected.push((3, false, true));
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_control_plane_of_protocol_1() {
    plays(1, include_str!("../../../../proto/recorded/protocol-1-hub.hex")).await;
}

#[tokio::test]
async fn a_control_plane_of_protocol_2() {
    plays(2, include_str!("../../../../proto/recorded/protocol-2-hub.hex")).await;
}

#[tokio::test]
async fn a_control_plane_of_protocol_3_that_accepts_no_tokens_by_number() {
    plays(3, include_str!("../../../../proto/recorded/protocol-3-hub.hex")).await;
}
