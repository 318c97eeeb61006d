use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::worker::types::{Exit, Standbys, Starts, UnixNanos};

fn incarnation() -> impl Strategy<Value = wire::Incarnation> {
    ("[a-f0-9-]{0,8}", "[a-f0-9]{0,8}").prop_map(|(pod_uid, container_id)| wire::Incarnation {
        pod_uid,
        container_id,
    })
}

fn rule() -> impl Strategy<Value = wire::TerminalRule> {
    let values = prop::collection::vec(any::<i32>(), 0..4);
    (-1..4, values, "[a-z]{0,3}", "[a-z]{0,3}").prop_map(|(operator, values, container, job)| {
        wire::TerminalRule {
            operator,
            values,
            container,
            job,
        }
    })
}

fn group() -> impl Strategy<Value = wire::Group> {
    let numbers = any::<(u64, u64, u64, u32, u32)>();
    let named = || prop::collection::vec(incarnation(), 0..3);
    let rules = prop::option::of(prop::collection::vec(rule(), 0..3));
    (".{0,6}", numbers, -1..4, any::<bool>(), named(), named(), rules).prop_map(
        |(uid, numbers, scope, release, fresh, stale, rules)| wire::Group {
            namespace: uid.clone(),
            uid,
            worker_restarts: fresh
                .iter()
                .map(|incarnation: &wire::Incarnation| wire::WorkerRestart {
                    incarnation: Some(incarnation.clone()),
                    generation: numbers.1,
                    release,
                })
                .collect(),
            epoch: numbers.0,
            generation: numbers.1,
            counted_restarts: numbers.2,
            scope,
            release,
            fresh,
            stale,
            grace_ms: numbers.3,
            terminal_rules: rules.map(|rules| wire::TerminalRules { rules }),
            heartbeat_timeout_ms: numbers.4,
            ready_timeout_ms: numbers.3,
        },
    )
}

fn message(groups: Vec<wire::Group>) -> wire::HubMessage {
    wire::HubMessage {
        kind: Some(wire::hub_message::Kind::Desired(wire::Desired { groups })),
    }
}

fn of_bytes(bytes: &[u8]) -> Result<Option<wire::Desired>, prost::DecodeError> {
    Ok(match wire::HubMessage::decode(bytes)?.kind {
        Some(wire::hub_message::Kind::Desired(desired)) => Some(desired),
        _ => None,
    })
}

proptest! {
    #[test]
    fn orders_of_the_hub_arrive_whole_or_not_at_all(groups in prop::collection::vec(group(), 0..4)) {
        let bytes = message(groups.clone()).encode_to_vec();
        let got = desired(of_bytes(&bytes).unwrap().unwrap());
        let known: Vec<_> = groups.iter().filter(|group| (0..=1).contains(&group.scope)).collect();
        prop_assert_eq!(got.len(), known.len());
        for (got, sent) in got.iter().zip(known) {
            let numbers = (got.epoch.0, got.generation.0, got.counted_restarts, got.grace_ms, got.heartbeat_timeout_ms);
            prop_assert_eq!(
                numbers,
                (sent.epoch, sent.generation, sent.counted_restarts, sent.grace_ms, sent.heartbeat_timeout_ms)
            );
            prop_assert_eq!(got.ready_timeout_ms, sent.ready_timeout_ms);
            prop_assert_eq!((got.group.as_str(), got.release), (sent.uid.as_str(), sent.release));
            prop_assert_eq!(got.namespace.as_deref().unwrap_or_default(), sent.namespace.as_str());
            prop_assert_eq!(&got.fresh, &incarnations(sent.fresh.clone()));
            prop_assert_eq!(&got.stale, &incarnations(sent.stale.clone()));
            prop_assert!(sent.fresh.iter().all(|named| {
                let named = (named.pod_uid.as_str(), named.container_id.as_str());
                got.fresh.iter().any(|got| (got.pod.as_str(), got.container.as_str()) == named)
            }), "one is missing in {:?}", got.fresh);
            let rules = sent.terminal_rules.iter().flat_map(|sent| &sent.rules);
            let known: Vec<_> = rules
                .filter(|rule| (1..=2).contains(&rule.operator))
                .map(|rule| (rule.operator == 2, rule.values.clone()))
                .collect();
            let rules: Vec<_> = got.terminal_rules.iter().map(|rule| (rule.negated, rule.codes.clone())).collect();
            prop_assert_eq!(rules, known);
        }
    }

    /// Random bytes, and damaged messages.
    #[test]
    fn any_bytes_are_an_error_or_a_value(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        groups in prop::collection::vec(group(), 0..3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut damaged = message(groups).encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        for bytes in [&garbage, &damaged] {
            if let Ok(Some(message)) = of_bytes(bytes) {
                let groups = message.groups.len();
                prop_assert!(desired(message).len() <= groups);
            }
        }
    }

    #[test]
    fn a_report_says_what_the_worker_is(
        code in any::<i32>(),
        signal in any::<i32>(),
        since in any::<i64>(),
        which in 0_usize..6,
        counts in prop::option::of(any::<(u32, u32, u32)>()),
        ready in prop::option::of((any::<(u32, u32, u64, u32)>(), ".{0,8}")),
        said in (prop::option::of(any::<u64>()), ".{0,8}", ".{0,8}"),
    ) {
        let exit = Exit { code, signal };
        let (phase, expected) = [
            (Phase::Agent(AgentPhase::Fresh), wire::Phase::Fresh),
            (Phase::Agent(AgentPhase::Running), wire::Phase::Running),
            (Phase::Agent(AgentPhase::Exited(exit)), wire::Phase::Exited),
            (Phase::Agent(AgentPhase::Done(exit)), wire::Phase::Done),
            (Phase::Unlinked(Some(exit)), wire::Phase::Unlinked),
            (Phase::Lost(exit), wire::Phase::Lost),
        ][which];
        let state = WorkerState {
            group: "g".into(),
            job: "job".to_owned(),
            index: 3,
            container: "worker".to_owned(),
            incarnation: Incarnation { pod: "p".into(), container: "c".into() },
            namespace: "team".to_owned(),
            pod_name: "pod".to_owned(),
            phase,
            generation: Generation(1),
            epoch: Epoch(2),
            counted_restarts: 3,
            revision: 4,
            since: UnixNanos(since),
            detail: String::new(),
            heartbeat: Heartbeat::Well,
            released_generation: None,
            starts: counts.map(|(standby, cold, ahead_ms)| Starts { standby, cold, ahead_ms }),
            standbys: ready.clone().map(|((wanted, ready, memory_kib, modules), reason)| Standbys {
                wanted,
                ready,
                memory_kib,
                modules,
                reason,
            }),
            progress: Progress { step: said.0, section: said.1.clone(), error: said.2.clone() },
        };
        let bytes = worker_state(state).encode_to_vec();
        let got = wire::WorkerState::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!((got.phase(), got.since_unix_nanos), (expected, since));
        let ended = phase.exit().map(|exit| (exit.code, exit.signal));
        prop_assert_eq!(got.exit.map(|exit| (exit.code, exit.signal)), ended);
        let starts = got.starts.map(|starts| (starts.standby, starts.cold, starts.ahead_ms));
        prop_assert_eq!(starts, counts);
        let standbys = got.standbys.map(|standbys| {
            let numbers = (standbys.wanted, standbys.ready, standbys.memory_kib, standbys.modules);
            (numbers, standbys.reason)
        });
        prop_assert_eq!(standbys, ready);
        let progress = got.progress.map(|progress| (progress.step, progress.section, progress.error));
        let has_said = said.0.is_some() || !said.1.is_empty() || !said.2.is_empty();
        prop_assert_eq!(progress, has_said.then_some(said));
    }
}
