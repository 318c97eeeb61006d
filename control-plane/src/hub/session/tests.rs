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
