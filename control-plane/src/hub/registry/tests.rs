//! What the task of a group finds while a daemon connects.

use super::*;

fn heard(link: &GroupLink) -> usize {
    link.heard(&BTreeSet::from(["n1".to_owned()])).len()
}

#[test]
fn a_node_is_heard_once_its_snapshot_is_stored_and_not_before() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let outbox = Outbox::new(pb::Welcome::default());
    let (session, _) = registry.enter("n1", &outbox, 1);
    assert_eq!(
        heard(&link),
        0,
        "whoever looks now would take its workers for missing"
    );
    registry.disconnect("n1", session);
    let session = registry.connect("n1", &outbox, 1, Vec::new());
    assert_eq!(heard(&link), 1);
    registry.disconnect("n1", session);
    assert_eq!(heard(&link), 1, "what it has said is known");
}

#[test]
fn a_hello_is_news_until_it_is_asked_who_was_heard() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    assert_eq!(heard(&link), 0);
    registry.connect("n1", &Outbox::new(pb::Welcome::default()), 1, Vec::new());
    assert_eq!(link.reports(), []);
    assert_eq!(link.news(), News::Hello);
    assert_eq!(heard(&link), 1);
    assert_eq!(link.news(), News::None);
}
