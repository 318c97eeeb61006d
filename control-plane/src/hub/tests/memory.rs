//! Nodes that would fill the leader's memory: the room for each is bounded, and no other node
//! notices.

use super::identity::welcomed;
use super::*;

/// The limit of workers per node, and per message.
const MOST: usize = 4096;

/// A worker in a pod and group of its own.
fn another(number: usize) -> pb::WorkerState {
    pb::WorkerState {
        group_uid: format!("group-of-{number}"),
        incarnation: Some(pb::Incarnation {
            pod_uid: format!("pod-{number}"),
            container_id: "c1".into(),
        }),
        ..worker(pb::Phase::Running, 0, 1)
    }
}

fn connect(registry: &Registry, snapshot: Vec<pb::WorkerState>) -> u64 {
    registry.connect("n1", &Outbox::new(pb::Welcome::default()), 3, snapshot)
}

#[test]
fn a_worker_is_of_the_group_that_it_was_of_first() {
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let link = registry.claim(UID);
    let session = connect(&registry, vec![worker(pb::Phase::Running, 0, 1)]);
    for number in 0..100 {
        let moved = pb::WorkerState {
            group_uid: format!("group-of-{number}"),
            ..worker(pb::Phase::Lost, 0, 9)
        };
        registry.report("n1", session, vec![moved]);
    }
    assert_eq!((registry.groups(), refusals.count("other_group")), (1, 100));
    assert_eq!(link.all_reports()[0].1.phase, Phase::Running);
}

#[test]
fn a_node_has_so_many_workers_however_often_it_connects_and_room_for_those_that_it_lists() {
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    for round in 0..3 {
        let first = round * (MOST + 10);
        let session = connect(&registry, (first..first + MOST + 10).map(another).collect());
        assert_eq!(registry.groups(), MOST);
        // No listed worker is dropped for another.
        registry.report("n1", session, vec![another(first + MOST)]);
        assert_eq!(registry.groups(), MOST);
        let link = registry.claim(&format!("group-of-{first}"));
        assert_eq!(link.all_reports()[0].1.phase, Phase::Running);
    }
    // Workers beyond the limit of a message count as one refusal; those beyond the limit of the
    // node count individually.
    assert_eq!(refusals.count("too_many_workers"), 3 + 3);
    // No task watches the others.
    let session = connect(&registry, vec![another(0)]);
    registry.sweep(Duration::ZERO);
    assert!(registry.groups() <= 4, "{}", registry.groups());
    registry.report("n1", session, vec![another(MOST)]);
    assert_eq!(refusals.count("too_many_workers"), 3 + 3);
}

#[test]
fn pods_that_come_and_go_take_no_room_from_others() {
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let of = |uid: &str| {
        let link = registry.claim(uid);
        link.all_reports().len()
    };
    let gone = |number: usize| another(number).incarnation.unwrap();
    let ended = |number: usize| pb::WorkerState {
        phase: pb::Phase::Lost.into(),
        ..another(number)
    };
    // One tenant fills the node's room with pods. All of them are gone again, some after they have
    // ended. Only the first one belongs to another tenant.
    let session = connect(&registry, (0..MOST).map(another).collect());
    registry.report("n1", session, (MOST - 2..MOST).map(ended).collect());
    registry.gone("n1", session, (1..MOST).map(gone).collect());
    // Ended ones are dropped first, and listed ones never.
    for number in MOST..MOST + 2 {
        registry.report("n1", session, vec![another(number)]);
        assert_eq!(of(&format!("group-of-{number}")), 1);
    }
    assert_eq!([of("group-of-1"), of(&format!("group-of-{}", MOST - 1))], [1, 0]);
    let more = 2 * MOST - 3;
    for number in MOST + 2..MOST + 2 + more - MOST {
        registry.report("n1", session, vec![another(number)]);
    }
    assert_eq!((of("group-of-0"), refusals.count("too_many_workers")), (1, 0));
    // A replaced stream is ignored.
    registry.gone("n1", session + 1, vec![gone(0)]);
    // Now all are listed.
    registry.report("n1", session, (2 * MOST..3 * MOST).map(another).collect());
    assert_eq!(of("group-of-0"), 1);
    assert!(refusals.count("too_many_workers") > 0);
}

#[test]
fn a_name_that_none_can_have_is_not_kept_and_the_workers_beside_it_are() {
    let long = || "x".repeat(254);
    let incarnation = |pod_uid: String, container_id: String| {
        Some(pb::Incarnation {
            pod_uid,
            container_id,
        })
    };
    let good = || worker(pb::Phase::Running, 0, 1);
    let lies: [fn(&mut pb::WorkerState, String); 4] = [
        |state, long| state.job = long,
        |state, long| state.container = long,
        |state, long| state.pod_name = long,
        |state, long| state.group_uid = long,
    ];
    let mut states: Vec<pb::WorkerState> = lies
        .into_iter()
        .map(|lie| {
            let mut state = good();
            lie(&mut state, long());
            state
        })
        .collect();
    for incarnation in [
        incarnation("x".repeat(64), "c".into()),
        incarnation("p".into(), long()),
    ] {
        states.push(pb::WorkerState {
            incarnation,
            ..good()
        });
    }
    let refused = states.len() as u64;
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let link = registry.claim(UID);
    states.push(good());
    connect(&registry, states);
    assert_eq!((link.all_reports().len(), registry.groups()), (1, 1));
    assert_eq!(refusals.count("long_name"), refused);
}

#[tokio::test]
async fn a_message_of_many_small_parts_is_not_read() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    // Two bytes each on the wire.
    let many = || vec![pb::WorkerState::default(); 100_000];
    let refused = hub.connect("n2", hello(many())).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let mut node = welcomed(&hub, "n2", 3).await;
    let report = pb::Report {
        workers: many(),
        ..pb::Report::default()
    };
    let kind = Some(node_message::Kind::Report(report));
    node.tx.send(pb::NodeMessage { kind }).await.unwrap();
    let end = node.ends().await;
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("too large"), "{end}");
    assert_eq!(hub.refusals.count("oversized"), 2);
    other.is_served(&link, 1).await;
}
