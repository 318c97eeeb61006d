use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn state() -> impl Strategy<Value = pb::WorkerState> {
    let name = || "[a-z]{0,3}";
    let numbers = any::<(u32, u64, u64, u64, i32, i32, i64)>();
    let names = (name(), name(), name(), name(), name());
    let standby = (
        any::<Option<[u32; 3]>>(),
        any::<Option<[u32; 3]>>(),
        "\\PC{0,120}|.{0,400}",
    );
    (names, numbers, -1..12, -1..4, (any::<(bool, bool)>(), standby)).prop_map(
        |(names, numbers, phase, heartbeat, ((incarnation, exit), (starts, standbys, reason)))| {
            pb::WorkerState {
                group_uid: names.0,
                job: names.1,
                completion_index: numbers.0,
                container: names.2,
                incarnation: incarnation.then_some(pb::Incarnation {
                    pod_uid: names.3,
                    container_id: names.4,
                }),
                phase,
                generation: numbers.1,
                counted_restarts: numbers.2,
                revision: numbers.3,
                exit: exit.then_some(pb::Exit {
                    code: numbers.4,
                    signal: numbers.5,
                }),
                since_unix_nanos: numbers.6,
                heartbeat,
                starts: starts.map(|[standby, cold, ahead_ms]| pb::Starts {
                    standby,
                    cold,
                    ahead_ms,
                }),
                standbys: standbys.map(|[wanted, ready, modules]| pb::Standbys {
                    wanted,
                    ready,
                    memory_kib: u64::from(modules) << 20,
                    modules,
                    reason,
                }),
                ..pb::WorkerState::default()
            }
        },
    )
}

fn report(states: Vec<pb::WorkerState>) -> pb::NodeMessage {
    pb::NodeMessage {
        kind: Some(pb::node_message::Kind::Report(pb::Report {
            workers: states,
            ..pb::Report::default()
        })),
    }
}

fn of_bytes(bytes: &[u8]) -> Result<Vec<pb::WorkerState>, prost::DecodeError> {
    Ok(match pb::NodeMessage::decode(bytes)?.kind {
        Some(pb::node_message::Kind::Report(report)) => report.workers,
        Some(pb::node_message::Kind::Hello(hello)) => hello.snapshot,
        _ => Vec::new(),
    })
}

/// True if a state has its whole identity, and a phase that this version knows.
fn complete(state: &pb::WorkerState) -> bool {
    let ids = state.incarnation.as_ref();
    let ids = ids.is_some_and(|ids| !ids.pod_uid.is_empty() && !ids.container_id.is_empty());
    let names = [&state.group_uid, &state.job, &state.container];
    ids && names.iter().all(|name| !name.is_empty()) && (1..=9).contains(&state.phase)
}

proptest! {
    #[test]
    fn a_report_is_taken_as_it_was_sent_or_left_out(sent in state()) {
        let states = of_bytes(&report(vec![sent.clone()]).encode_to_vec()).unwrap();
        prop_assert_eq!(states.len(), 1);
        let got = report_from("node", states[0].clone());
        prop_assert_eq!(got.is_ok(), complete(&sent));
        let Ok(Reported { group, namespace, incarnation, report, revision }) = got else {
            return Ok(());
        };
        let ids = sent.incarnation.unwrap();
        prop_assert_eq!((incarnation.pod_uid, incarnation.container_id), (ids.pod_uid, ids.container_id));
        prop_assert_eq!((group, namespace, revision), (sent.group_uid, sent.pod_namespace, sent.revision));
        let identity = Identity { job: sent.job.into(), index: sent.completion_index, container: sent.container.into() };
        prop_assert_eq!(report.identity, identity);
        prop_assert_eq!((report.generation.0, report.since.0), (sent.generation, sent.since_unix_nanos));
        prop_assert_eq!(u64::from(report.counted_restarts), sent.counted_restarts.min(u64::from(u32::MAX)));
        prop_assert_eq!(report.node, "node");
        if let Phase::Exited(exit) | Phase::Lost(exit) = report.phase {
            let sent = sent.exit.map_or(Exit::default(), |exit| Exit { code: exit.code, signal: exit.signal });
            prop_assert_eq!(exit, sent);
        }
        prop_assert_eq!(report.standby.is_some(), sent.starts.is_some() || sent.standbys.is_some());
        let standby = report.standby.as_deref().cloned().unwrap_or_default();
        prop_assert_eq!(standby.starts.is_some(), sent.starts.is_some());
        if let (Some(got), Some(sent)) = (standby.starts, sent.starts) {
            prop_assert_eq!((got.standby, got.cold), (sent.standby.min(1024), sent.cold.min(1024)));
            prop_assert_eq!(got.ahead_ms, sent.ahead_ms.min(86_400_000));
        }
        prop_assert_eq!(standby.standbys.is_some(), sent.standbys.is_some());
        if let (Some(got), Some(sent)) = (standby.standbys, sent.standbys) {
            prop_assert!(got.wanted == sent.wanted.min(1024) && got.ready == sent.ready.min(got.wanted));
            prop_assert_eq!((got.memory_kib, got.modules), (sent.memory_kib.min(1 << 40), sent.modules.min(131_072)));
            prop_assert!(got.reason.capacity() <= 200 && !got.reason.contains(char::is_control));
            let same: String = sent.reason.chars().filter(|sign| !sign.is_control()).collect();
            prop_assert!(same.starts_with(&got.reason), "{:?} of {:?}", got.reason, same);
        }
    }

    /// Random bytes, and messages that were damaged on the way.
    #[test]
    fn any_bytes_are_an_error_or_a_value(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        states in prop::collection::vec(state(), 0..3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut damaged = report(states).encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        for bytes in [&garbage, &damaged] {
            for state in of_bytes(bytes).unwrap_or_default() {
                let whole = complete(&state);
                prop_assert_eq!(report_from("node", state).is_ok(), whole);
            }
        }
    }

    #[test]
    fn the_message_for_a_node_survives_the_wire(
        numbers in any::<(u64, u64, u32, u32, u32)>(),
        release in any::<bool>(),
        named in prop::collection::vec(("[a-z]{1,3}", "[a-z]{1,3}"), 0..4),
        codes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<i32>(), 0..3)), 0..3),
    ) {
        let desired = Desired {
            generation: Generation(numbers.1),
            counted_restarts: numbers.2,
            release,
            ..Desired::default()
        };
        let policy = GroupPolicy {
            namespace: "ns".to_owned(),
            grace_ms: numbers.3,
            heartbeat_timeout_ms: numbers.4,
            ready_timeout_ms: numbers.3,
            terminal_rules: codes
                .iter()
                .map(|(negated, codes)| TerminalRule {
                    job: "job".to_owned(),
                    container: String::new(),
                    negated: *negated,
                    codes: codes.clone(),
                })
                .collect(),
        };
        let incarnation = |(pod_uid, container_id): &(String, String)| Incarnation {
            pod_uid: pod_uid.clone(),
            container_id: container_id.clone(),
        };
        let named: Vec<_> = named.iter().map(incarnation).collect();
        let restart = WorkerRestart { generation: Generation(numbers.0), release };
        let worker_restarts = named.iter().map(|incarnation| (incarnation.clone(), restart)).collect();
        let on_node = NamedOnNode { fresh: named.clone(), stale: named.clone(), worker_restarts };
        let sent = group_to("uid", Epoch(numbers.0), &desired, &policy, on_node);
        let got = pb::Group::decode(sent.encode_to_vec().as_slice()).unwrap();
        prop_assert_eq!((got.epoch, got.generation, got.grace_ms), (numbers.0, numbers.1, numbers.3));
        prop_assert_eq!((got.counted_restarts, got.heartbeat_timeout_ms), (u64::from(numbers.2), numbers.4));
        prop_assert_eq!(got.ready_timeout_ms, numbers.3);
        prop_assert_eq!((got.uid.as_str(), got.release, got.scope()), ("uid", release, pb::Scope::Group));
        prop_assert_eq!(got.namespace.as_str(), "ns");
        for worker in &got.worker_restarts {
            prop_assert_eq!((worker.generation, worker.release), (numbers.0, release));
        }
        let worker_restarts = got.worker_restarts.into_iter().filter_map(|worker| worker.incarnation).collect();
        for list in [got.fresh, got.stale, worker_restarts] {
            let list: Vec<_> = list.into_iter().filter_map(incarnation_from).collect();
            prop_assert_eq!(&list, &named);
        }
        let rules = got.terminal_rules.unwrap().rules;
        let rules: Vec<_> = rules
            .into_iter()
            .map(|rule| (rule.operator() == pb::terminal_rule::Operator::NotIn, rule.values))
            .collect();
        prop_assert_eq!(rules, codes);
    }
}
