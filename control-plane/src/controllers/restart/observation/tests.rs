//! Which node is believed about which pod.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use lockstep_core::restart::{Epoch, Gathered};
use lockstep_proto::node::v1 as pb;
use serde_json::json;

use super::*;
use crate::hub::{GroupPolicy, Outbox, Refusals, Registry};

/// These pods as the API server shows them.
fn view(bound: &[(&str, Option<&str>)]) -> View {
    View {
        gathered: Gathered {
            pods: bound
                .iter()
                .map(|(pod, node)| {
                    let placed = Placed {
                        node: node.map(str::to_owned),
                        place: Some(("js-w-0".to_owned(), 0)),
                    };
                    ((*pod).to_owned(), placed)
                })
                .collect(),
            ..Gathered::default()
        },
        policy: GroupPolicy::default(),
        nodes: Arc::new(
            bound
                .iter()
                .filter_map(|(_, node)| node.map(str::to_owned))
                .collect(),
        ),
        places: BTreeMap::new(),
    }
}

fn jobset() -> JobSet {
    let jobset = json!({"metadata": {"name": "js", "uid": "u", "namespace": "default"}, "spec": {}});
    serde_json::from_value(jobset).unwrap()
}

fn connect(registry: &Registry, node: &str) -> u64 {
    registry.connect(node, &Outbox::new(pb::Welcome::default()), 1, Vec::new())
}

fn worker(pod: &str, phase: pb::Phase, revision: u64) -> pb::WorkerState {
    pb::WorkerState {
        group_uid: "u".into(),
        job: "js-w-0".into(),
        container: "worker".into(),
        incarnation: Some(pb::Incarnation {
            pod_uid: pod.into(),
            container_id: format!("container of {pod}"),
        }),
        phase: phase.into(),
        revision,
        ..pb::WorkerState::default()
    }
}

fn look(link: &GroupLink, bound: &[(&str, Option<&str>)]) -> Observation {
    let mut view = view(bound);
    view.gathered.policy.replaces_pods = false;
    Observation::new(view, &jobset(), link, Durable::default())
}

fn phases(observation: &Observation) -> Vec<(&str, Phase)> {
    let reports = observation.observed().reports.iter();
    reports
        .map(|(incarnation, report)| (incarnation.pod_uid.as_str(), report.phase))
        .collect()
}

#[test]
fn reports_have_the_same_effect_one_by_one_and_all_at_once() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let bound = [("p1", Some("n1")), ("p2", Some("n2"))];
    let mut observation = look(&link, &bound);
    assert!(observation.observed().heard_nodes.is_empty());

    let session = connect(&registry, "n1");
    observation.listen(&link);
    assert_eq!(
        observation.observed().heard_nodes,
        BTreeSet::from(["n1".to_owned()])
    );

    registry.report("n1", session, vec![worker("p1", pb::Phase::Running, 1)]);
    observation.listen(&link);
    assert_eq!(phases(&observation), [("p1", Phase::Running)]);

    // The API server does not show its pod yet: the report counts once it does.
    let other = connect(&registry, "n2");
    registry.report("n2", other, vec![worker("p3", pb::Phase::Running, 1)]);
    observation.listen(&link);
    assert_eq!(phases(&observation), [("p1", Phase::Running)]);
    let mut observation = look(&link, &[bound[0], bound[1], ("p3", Some("n2"))]);
    assert_eq!(
        phases(&observation),
        [("p1", Phase::Running), ("p3", Phase::Running)]
    );

    registry.disconnect("n1", session);
    observation.listen(&link);
    assert_eq!(
        phases(&observation),
        [("p1", Phase::Unlinked), ("p3", Phase::Running)]
    );
}

#[test]
fn only_changes_call_for_a_step() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let mut observation = look(&link, &[("p1", Some("n1"))]);
    let session = connect(&registry, "n1");
    assert_eq!(observation.listen(&link), Urgency::Hello);
    assert_eq!(observation.observed().heard_nodes.len(), 1);
    assert_eq!(observation.listen(&link), Urgency::Nothing);
    let says = |revision| registry.report("n1", session, vec![worker("p1", pb::Phase::Running, revision)]);
    says(1);
    assert_eq!(observation.listen(&link), Urgency::Step);
    says(1);
    assert_eq!(
        observation.listen(&link),
        Urgency::Nothing,
        "it is what was known"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_only_shown_calls_for_no_step() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let mut observation = look(&link, &[("p1", Some("n1"))]);
    let session = connect(&registry, "n1");
    let says = |phase: pb::Phase, ready: u32, revision: u64| {
        let standbys = pb::Standbys {
            wanted: 4,
            ready,
            ..pb::Standbys::default()
        };
        let state = pb::WorkerState {
            standbys: Some(standbys),
            ..worker("p1", phase, revision)
        };
        registry.report("n1", session, vec![state]);
    };
    says(pb::Phase::Running, 0, 1);
    observation.listen(&link);
    says(pb::Phase::Running, 1, 2);
    assert_eq!(observation.listen(&link), Urgency::Shown);
    says(pb::Phase::Running, 1, 3);
    assert_eq!(observation.listen(&link), Urgency::Nothing);

    // Several changes are shown together, and late.
    let began = tokio::time::Instant::now();
    says(pb::Phase::Running, 2, 4);
    assert_eq!(observation.until_step_due(&link, Duration::ZERO).await, Due::Show);
    assert!(began.elapsed() >= SHOWN_AFTER, "{:?}", began.elapsed());
    let ready = |observation: &Observation| {
        let report = observation.observed().reports.values().next();
        let standby = report.and_then(|report| report.standby.clone());
        standby.and_then(|standby| Some(standby.standbys.as_ref()?.ready))
    };
    assert_eq!(ready(&observation), Some(2));
    // A failure waits for nothing.
    says(pb::Phase::Running, 3, 5);
    says(pb::Phase::Lost, 3, 6);
    let due = observation.until_step_due(&link, Duration::ZERO).now_or_never();
    assert_eq!((due, ready(&observation)), (Some(Due::Step), Some(3)));
    let full = look(&link, &[("p1", Some("n1"))]);
    assert_eq!(full.observed().reports, observation.observed().reports);
}

#[test]
fn a_new_durable_state_keeps_the_rest_of_the_observation() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let mut observation = look(&link, &[("p1", Some("n1"))]);
    let session = connect(&registry, "n1");
    let parked = pb::WorkerState {
        generation: 1 << 40,
        ..worker("p1", pb::Phase::Parked, 1)
    };
    registry.report("n1", session, vec![parked]);
    observation.listen(&link);
    assert_eq!(phases(&observation), [], "no leader has given that generation");
    let durable = Durable {
        generation: Generation(1 << 40),
        ..Durable::default()
    };
    observation.renew(&link, durable.clone());
    assert_eq!(phases(&observation), [("p1", Phase::Parked)]);
    assert_eq!(observation.observed().durable, durable);
}

#[test]
fn a_former_task_does_not_affect_a_group_of_another_task() {
    let registry = Registry::new(Epoch(7));
    let first = registry.claim("u");
    let bound = [("p1", Some("n1"))];
    let mut before = look(&first, &bound);
    let second = registry.claim("u");
    let mut observation = look(&second, &bound);
    let session = connect(&registry, "n1");
    registry.report("n1", session, vec![worker("p1", pb::Phase::Running, 1)]);

    // The first task takes nothing away from the second.
    before.listen(&first);
    assert_eq!(first.all_reports(), []);
    first.withdraw();
    drop(first);
    observation.listen(&second);
    assert_eq!(phases(&observation), [("p1", Phase::Running)]);
    registry.sweep(Duration::ZERO);
    assert_eq!(second.all_reports().len(), 1);
    registry.report("n1", session, vec![worker("p1", pb::Phase::Parked, 2)]);
    observation.listen(&second);
    assert_eq!(phases(&observation), [("p1", Phase::Parked)]);
}

#[test]
fn a_node_is_believed_only_about_its_own_pods() {
    let bound = [("p1", Some("n1")), ("p2", Some("n2")), ("p3", None)];
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let link = registry.claim("u");
    let sessions = BTreeMap::from(["n1", "n2"].map(|node| (node, connect(&registry, node))));
    let says = |node: &str, pod: &str, phase: pb::Phase| {
        registry.report(node, sessions[node], vec![worker(pod, phase, 9)]);
    };
    says("n1", "p1", pb::Phase::Running);
    // Reports about a pod of another node, an unbound pod, and a missing pod: none of them is
    // believed.
    says("n1", "p2", pb::Phase::Lost);
    says("n1", "p3", pb::Phase::Lost);
    says("n1", "forged", pb::Phase::Lost);
    says("n2", "p1", pb::Phase::Lost);

    let observation = look(&link, &bound);
    let believed: Vec<_> = observation
        .observed()
        .reports
        .iter()
        .map(|(incarnation, report)| (incarnation.pod_uid.as_str(), report.node.as_str(), report.phase))
        .collect();
    assert_eq!(believed, [("p1", "n1", Phase::Running)]);

    // Only a certain lie counts, and only once, even if the group reads it often.
    let lies = || refusals.count("foreign_pod");
    assert_eq!(lies(), 2);
    let mut observation = look(&link, &bound);
    assert_eq!(lies(), 2);
    says("n1", "p2", pb::Phase::Lost);
    observation.listen(&link);
    assert_eq!((lies(), observation.observed().reports.len()), (3, 1));
}

#[test]
fn a_node_does_not_speak_for_another_worker_by_its_own_pod() {
    let bound = [("p1", Some("n1")), ("p2", Some("n2"))];
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let link = registry.claim("u");
    let session = connect(&registry, "n1");
    let mut observation = look(&link, &bound);
    let mut says = |job: &str, completion_index: u32| {
        let state = pb::WorkerState {
            job: job.into(),
            completion_index,
            ..worker("p1", pb::Phase::Done, 9)
        };
        registry.report("n1", session, vec![state]);
        observation.listen(&link);
        assert_eq!(
            look(&link, &bound).observed().reports,
            observation.observed().reports
        );
        observation.observed().reports.len()
    };
    assert_eq!(
        [says("js-w-0", 0), says("js-w-0", 1), says("js-v-0", 0)],
        [1, 0, 0]
    );
    assert_eq!(
        (refusals.count("other_worker"), refusals.count("foreign_pod")),
        (2, 0)
    );
    assert_eq!(says("js-w-0", 0), 1);
}

#[test]
fn a_made_up_generation_has_no_effect() {
    let bound = [("p1", Some("n1")), ("p2", Some("n2"))];
    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    let link = registry.claim("u");
    let session = connect(&registry, "n1");
    let mut observation = look(&link, &bound);
    let mut says = |generation: u64, counted_restarts: u64| {
        let state = pb::WorkerState {
            generation,
            counted_restarts,
            ..worker("p1", pb::Phase::Parked, 9)
        };
        registry.report("n1", session, vec![state]);
        // The result is the same if it reads only the changes or everything again.
        observation.listen(&link);
        let mut reports = observation.observed().reports.values();
        let heard = reports.next().map(|report| report.generation.0);
        assert_eq!(
            look(&link, &bound).observed().reports,
            observation.observed().reports
        );
        heard
    };
    assert_eq!(says(3, 3), Some(3), "a former leader may have got so far");
    assert_eq!(says(u64::MAX, 3), None, "nor is it as it was before");
    assert_eq!(says(4, u64::MAX), None);
    assert_eq!(says(4, 4), Some(4));
    let lies = ["impossible_generation", "impossible_counter"].map(|reason| refusals.count(reason));
    assert_eq!(lies, [1, 1]);
}

#[test]
fn a_hello_wakes_only_the_groups_that_have_pods_on_the_node() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let woken = || link.changed().now_or_never().is_some();
    connect(&registry, "n0");
    assert!(woken(), "it has not looked yet, and may wait for any node");

    let observation = look(&link, &[("p1", Some("n1"))]);
    assert!(observation.observed().heard_nodes.is_empty());
    connect(&registry, "n2");
    assert!(!woken(), "another node does not matter to it");
    assert_eq!(
        link.unseen_changes(),
        Changes::None,
        "it need not read everything again"
    );
    connect(&registry, "n1");
    assert!(woken());
    assert_eq!(link.unseen_changes(), Changes::Hello);

    // A task that takes the group over knows nothing yet.
    drop(link);
    let link = registry.claim("u");
    connect(&registry, "n2");
    assert!(link.changed().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn hellos_are_combined_if_a_step_takes_long_and_failures_are_not() {
    const STEP: Duration = Duration::from_millis(20);
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let mut observation = look(&link, &[("p1", Some("n1"))]);
    let session = connect(&registry, "n1");
    let soon = Duration::from_millis(60);
    let put_off = tokio::time::timeout(soon, observation.until_step_due(&link, STEP)).await;
    assert!(put_off.is_err(), "others come with it");
    assert_eq!(
        observation.observed().heard_nodes.len(),
        1,
        "the hello is applied all the same"
    );
    registry.report("n1", session, vec![worker("p1", pb::Phase::Lost, 1)]);
    let due = tokio::time::timeout(soon, observation.until_step_due(&link, STEP)).await;
    assert!(due.is_ok());

    connect(&registry, "n1");
    let at_once = observation.until_step_due(&link, Duration::ZERO).now_or_never();
    assert!(at_once.is_some(), "a small group does not wait");
}
