use tokio_stream::StreamExt as _;

use super::*;

#[test]
fn groups_go_in_messages_that_a_daemon_takes() {
    const GROUPS: usize = 100;
    let outbox = Outbox::new(pb::Welcome::default());
    assert!(matches!(outbox.take(), Taken::Message(Kind::Welcome(_))));
    for group in 0..GROUPS {
        let rule = pb::ExitCodeRule {
            job: "j".repeat(500 << 10),
            ..pb::ExitCodeRule::default()
        };
        outbox.desired(Arc::new(pb::Group {
            uid: format!("{group:03}"),
            terminal_codes: Some(pb::TerminalCodes { rules: vec![rule] }),
            ..pb::Group::default()
        }));
    }
    let mut told = Vec::new();
    while let Taken::Message(Kind::Desired(desired)) = outbox.take() {
        assert!(desired.encoded_len() <= 4 << 20, "{}", desired.encoded_len());
        told.extend(desired.groups.into_iter().map(|group| group.uid));
    }
    let all: Vec<String> = (0..GROUPS).map(|group| format!("{group:03}")).collect();
    assert_eq!(told, all);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_silent_gives_a_sign_of_life_every_ten_seconds() {
    let outbox = Outbox::new(pb::Welcome::default());
    let mut messages = Outgoing::new(Arc::clone(&outbox));
    let began = Instant::now();
    let mut kinds = Vec::new();
    outbox.desired(Arc::default());
    for _ in 0..3 {
        let message = messages.next().await.unwrap().unwrap();
        kinds.push((began.elapsed().as_secs(), message.kind.unwrap()));
    }
    // A message in between ends the silence.
    tokio::time::advance(Duration::from_secs(4)).await;
    outbox.accepted(1);
    for _ in 0..3 {
        let message = messages.next().await.unwrap().unwrap();
        kinds.push((began.elapsed().as_secs(), message.kind.unwrap()));
    }
    let (at, kinds): (Vec<u64>, Vec<Kind>) = kinds.into_iter().unzip();
    assert_eq!(at, [0, 0, 10, 14, 24, 34]);
    assert!(
        matches!(
            kinds[..],
            [
                Kind::Welcome(_),
                Kind::Desired(_),
                Kind::Ping(pb::Ping { nonce: 1 }),
                Kind::Accepted(_),
                Kind::Ping(pb::Ping { nonce: 2 }),
                Kind::Ping(pb::Ping { nonce: 3 }),
            ]
        ),
        "{kinds:?}"
    );
}
