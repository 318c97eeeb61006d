//! The view of a group's task while a daemon connects.

use lockstep_proto::node::v1::hub_message::Kind;

use super::*;
use crate::hub::outbox::NextMessage;

fn reported(link: &GroupLink) -> usize {
    link.reported_nodes(&BTreeSet::from(["n1".to_owned()])).len()
}

#[test]
fn a_node_is_heard_once_its_snapshot_is_stored_and_not_before() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let outbox = Outbox::new(pb::Welcome::default());
    let (session, _) = registry.enter("n1", &outbox, 1);
    assert_eq!(
        reported(&link),
        0,
        "a task that looks now would count its workers as missing"
    );
    registry.disconnect("n1", session);
    let session = registry.connect("n1", &outbox, 1, Vec::new());
    assert_eq!(reported(&link), 1);
    registry.disconnect("n1", session);
    assert_eq!(reported(&link), 1, "its report is known");
}

#[test]
fn a_hello_counts_as_a_change_until_it_is_read() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    assert_eq!(reported(&link), 0);
    registry.connect("n1", &Outbox::new(pb::Welcome::default()), 1, Vec::new());
    assert_eq!(link.all_reports(), []);
    assert_eq!(link.unseen_changes(), Changes::Hello);
    assert_eq!(reported(&link), 1);
    assert_eq!(link.unseen_changes(), Changes::None);
}

#[test]
fn a_hello_is_passed_once_to_the_group_that_watches_the_node() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let connect = |node: &str| registry.connect(node, &Outbox::new(pb::Welcome::default()), 1, Vec::new());
    connect("n1");
    let nodes = ["n1", "n2", "n3"].map(str::to_owned);
    link.watch_nodes(&Arc::new(nodes.clone().into()));
    assert_eq!(link.reported_nodes(&nodes.into()).len(), 1);
    connect("n2");
    connect("n4");
    let named = |names: &[&str]| BTreeSet::from_iter(names.iter().map(|name| (*name).to_owned()));
    let second = link.newly_reported_nodes();
    assert_eq!(
        second,
        named(&["n2"]),
        "the first was heard, the last does not concern it"
    );
    assert_eq!(link.unseen_changes(), Changes::None);
    connect("n3");
    connect("n3");
    assert_eq!(link.newly_reported_nodes(), named(&["n3"]));
    assert!(link.newly_reported_nodes().is_empty());
}

#[test]
fn only_a_node_that_may_have_forgotten_gets_the_desired_state_again() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let connect = |node: &str| {
        let outbox = Outbox::new(pb::Welcome::default());
        let session = registry.connect(node, &outbox, 1, Vec::new());
        (outbox, session)
    };
    let ((first, session), (second, _)) = (connect("n1"), connect("n2"));
    let told = |outbox: &Outbox| {
        let next = std::iter::from_fn(|| match outbox.take() {
            NextMessage::Message(kind) => Some(kind),
            _ => None,
        });
        next.filter(|kind| matches!(kind, Kind::Desired(_))).count()
    };
    let published = || Published {
        nodes: Arc::new(["n1", "n2"].map(str::to_owned).into()),
        ..Published::default()
    };
    link.publish(published());
    assert_eq!((told(&first), told(&second)), (1, 1));
    link.publish(published());
    assert_eq!((told(&first), told(&second)), (0, 0));
    let worker = pb::WorkerState {
        group_uid: "u".into(),
        job: "js-w-0".into(),
        container: "worker".into(),
        incarnation: Some(pb::Incarnation {
            pod_uid: "p1".into(),
            container_id: "c1".into(),
        }),
        phase: pb::Phase::Running.into(),
        ..pb::WorkerState::default()
    };
    registry.report("n1", session, vec![worker]);
    link.publish(published());
    assert_eq!((told(&first), told(&second)), (1, 0));
}

#[test]
fn a_pod_of_another_namespace_is_none_of_the_groups_workers() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let outbox = Outbox::new(pb::Welcome::default());
    let session = registry.connect("n1", &outbox, 1, Vec::new());
    let mut published = Published::default();
    published.policy.namespace = "ns".to_owned();
    link.publish(published);
    let worker = |pod: &str, namespace: &str| pb::WorkerState {
        group_uid: "u".into(),
        job: "js-w-0".into(),
        container: "worker".into(),
        incarnation: Some(pb::Incarnation {
            pod_uid: pod.into(),
            container_id: "c".into(),
        }),
        pod_namespace: namespace.into(),
        phase: pb::Phase::Running.into(),
        ..pb::WorkerState::default()
    };
    // If a daemon does not name the namespace of a pod, its report is compared with the API
    // server's pods as usual.
    let said = [worker("own", "ns"), worker("foreign", "other"), worker("old", "")];
    registry.report("n1", session, said.into());
    let kept: Vec<String> = link.all_reports().into_iter().map(|(of, _)| of.pod_uid).collect();
    assert_eq!(kept, ["old", "own"]);
    assert_eq!(registry.refusals.count("other_namespace"), 1);
    assert_eq!(registry.nodes.get("n1").unwrap().workers.len(), 2);
}

#[test]
fn a_node_is_without_agents_for_as_long_as_its_daemon_says_so() {
    use lockstep_core::restart::UnixNanos;

    use crate::hub::{Access, Health};
    let registry = Registry::new(Epoch(1));
    let outbox = Outbox::new(pb::Welcome::default());
    let session = registry.connect("n", &outbox, 3, Vec::new());
    let found = |nri| {
        let cri = Access::Well(UnixNanos(1));
        registry.set_health("n", session, Health { cri, nri });
        registry.why_without_agents("n")
    };
    assert_eq!(found(Access::Unknown), None);
    let away = Access::Away(UnixNanos(2), "too large".to_owned());
    assert_eq!(found(away).as_deref(), Some("too large"));
    assert_eq!(found(Access::Well(UnixNanos(3))), None);
    assert_eq!(registry.why_without_agents("another"), None);
}
