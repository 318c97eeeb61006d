use lockstep_protocol::standby::{
    LONGEST_AHEAD_MS, LONGEST_REASON, MOST_MEMORY_KIB, MOST_MODULES, MOST_PROCESSES,
};
use proptest::prelude::*;

use super::*;

/// Numbers within the bounds, and any others.
fn standbys() -> impl Strategy<Value = (Option<wire::Starts>, Option<wire::Standbys>)> {
    let count = || prop_oneof![0..=MOST_PROCESSES, any::<u32>()];
    let starts = (count(), count(), any::<u32>()).prop_map(|(standby, cold, ahead_ms)| wire::Starts {
        standby,
        cold,
        ahead_ms,
    });
    let reason = prop_oneof![".{0,8}", Just("ä".repeat(10_000))];
    let standbys = (count(), count(), any::<u64>(), any::<u32>(), reason).prop_map(
        |(wanted, ready, memory_kib, modules, reason)| wire::Standbys {
            wanted,
            ready,
            memory_kib,
            modules,
            reason,
        },
    );
    (prop::option::of(starts), prop::option::of(standbys))
}

fn state() -> impl Strategy<Value = wire::State> {
    let numbers = any::<(u64, u64, u64, u64, i32, i32, i64)>();
    // As long as a frame can be, so that it is seen to be cut.
    let detail = prop_oneof![".{0,8}", Just("ä".repeat(10_000))];
    let text = || prop_oneof![".{0,8}", Just("ä".repeat(5_000))];
    let progress = (prop::option::of(any::<u64>()), text(), text());
    let progress = progress.prop_map(|(step, section, error)| wire::Progress { step, section, error });
    let shown = (standbys(), prop::option::of(progress));
    (-1..9, numbers, detail, any::<bool>(), -1..4, shown).prop_map(
        |(phase, numbers, detail, needs_host_kill, heartbeat, ((starts, standbys), progress))| wire::State {
            phase,
            generation: numbers.0,
            epoch: numbers.1,
            counted_restarts: numbers.2,
            revision: numbers.3,
            exit_code: numbers.4,
            exit_signal: numbers.5,
            since_unix_nanos: numbers.6,
            detail,
            needs_host_kill,
            host_kill_before: numbers.3 / 2,
            heartbeat,
            starts,
            standbys,
            progress,
        },
    )
}

fn frame(state: wire::State) -> Vec<u8> {
    wire::AgentMessage {
        kind: Some(Kind::State(state)),
    }
    .encode_to_vec()
}

/// Checks what must hold for any bytes that an agent, or a process posing as one, sends.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    match decode(bytes) {
        Ok(AgentMessage::State(state)) => {
            prop_assert!(state.detail.len() <= MAX_DETAIL);
            prop_assert_eq!(state.progress.clone().bounded(), state.progress.clone());
            if let Some(starts) = state.starts {
                prop_assert!(starts.standby.max(starts.cold) <= MOST_PROCESSES);
                prop_assert!(starts.ahead_ms <= LONGEST_AHEAD_MS);
            }
            if let Some(standbys) = state.standbys {
                prop_assert!(standbys.ready <= standbys.wanted && standbys.wanted <= MOST_PROCESSES);
                prop_assert!(standbys.memory_kib <= MOST_MEMORY_KIB && standbys.modules <= MOST_MODULES);
                prop_assert!(standbys.reason.len() <= LONGEST_REASON);
                prop_assert!(!standbys.reason.contains(char::is_control));
            }
        }
        Ok(AgentMessage::Register {
            version,
            container,
            id,
            ..
        }) => {
            prop_assert!(version.len() <= MAX_VERSION);
            prop_assert!(container.len().max(id.as_str().len()) <= MAX_NAME);
        }
        Err(error) => {
            let text = error.to_string();
            let named = [
                "malformed message: ",
                "its container",
                "a message of an unknown kind",
                "unknown phase ",
            ];
            prop_assert!(named.iter().any(|name| text.starts_with(name)), "{}", text);
        }
    }
    Ok(())
}

/// Checks that these are what was sent, within the bounds.
fn check_standbys(got: &AgentState, sent: &wire::State) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.starts.is_some(), sent.starts.is_some());
    if let (Some(got), Some(sent)) = (&got.starts, &sent.starts) {
        prop_assert_eq!(
            (got.standby, got.cold, got.ahead_ms),
            (
                sent.standby.min(1024),
                sent.cold.min(1024),
                sent.ahead_ms.min(86_400_000)
            )
        );
    }
    prop_assert_eq!(got.standbys.is_some(), sent.standbys.is_some());
    if let (Some(got), Some(sent)) = (&got.standbys, &sent.standbys) {
        prop_assert_eq!(
            (got.wanted, got.ready, got.memory_kib, got.modules),
            (
                sent.wanted.min(1024),
                sent.ready.min(sent.wanted).min(1024),
                sent.memory_kib.min(1 << 40),
                sent.modules.min(131_072)
            )
        );
        let printed: String = sent.reason.chars().filter(|sign| !sign.is_control()).collect();
        prop_assert!(printed.starts_with(&got.reason));
        prop_assert!(got.reason == printed || (197..=200).contains(&got.reason.len()));
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_state_arrives_as_it_was_sent(sent in state()) {
        let known = (1..=7).contains(&sent.phase);
        match decode(&frame(sent.clone())) {
            Ok(AgentMessage::State(got)) => {
                prop_assert!(known);
                prop_assert_eq!(
                    (got.generation.0, got.epoch.0, got.counted_restarts, got.revision, got.since.0, got.needs_host_kill),
                    (
                        sent.generation,
                        sent.epoch,
                        sent.counted_restarts,
                        sent.revision,
                        sent.since_unix_nanos,
                        sent.needs_host_kill
                    )
                );
                let before = got.host_kill_before.map_or(0, |before| before.0);
                prop_assert_eq!(before, sent.host_kill_before);
                let printed: String = sent.detail.chars().filter(|sign| !sign.is_control()).collect();
                prop_assert!(printed.starts_with(&got.detail));
                prop_assert!(got.detail == printed || got.detail.len() > MAX_DETAIL - 4);
                check_standbys(&got, &sent)?;
                if let AgentPhase::Exited(exit) | AgentPhase::Done(exit) = got.phase {
                    prop_assert_eq!((exit.code, exit.signal), (sent.exit_code, sent.exit_signal));
                }
            }
            other => {
                // A phase of another version is named in the error, and 0 is no phase.
                prop_assert!(!known, "{:?}", other);
                prop_assert_eq!(other.unwrap_err().to_string(), format!("unknown phase {}", sent.phase));
            }
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_value(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        sent in state(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut damaged = frame(sent);
        for (at, byte) in damage {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        check(&garbage)?;
        check(&damaged)?;
    }

    #[test]
    fn a_target_arrives_as_it_was_sent(
        numbers in any::<(u64, u64, u64, u32, u32, u32)>(),
        flags in any::<(bool, bool)>(),
        sent in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<i32>(), 0..4)), 0..4),
    ) {
        let target = Target {
            epoch: Epoch(numbers.0),
            generation: Generation(numbers.1),
            counted_restarts: numbers.2,
            release: flags.0,
            start_fresh: flags.1,
            grace_ms: numbers.3,
            terminal_codes: sent
                .iter()
                .cloned()
                .map(|(negated, codes)| TerminalCodes { negated, codes })
                .collect(),
            heartbeat_timeout_ms: numbers.4,
            ready_timeout_ms: numbers.5,
        };
        let got = wire::Target::decode(encode(target).as_slice()).unwrap();
        prop_assert_eq!(
            (
                got.epoch,
                got.generation,
                got.counted_restarts,
                got.grace_ms,
                got.heartbeat_timeout_ms,
                got.ready_timeout_ms,
            ),
            numbers
        );
        prop_assert_eq!((got.release, got.start_fresh), flags);
        let codes: Vec<_> = got.terminal_codes.into_iter().map(|codes| (codes.negated, codes.codes)).collect();
        prop_assert_eq!(codes, sent);
    }
}

#[test]
fn names_from_agents_are_short_and_printable() {
    let register = |container: &str, id: &str| {
        let register = wire::Register {
            protocol: 1,
            agent_version: format!("1.0\u{1b}[2J{}", "x".repeat(60_000)),
            container: container.to_owned(),
            container_id: id.to_owned(),
            epoch: u64::MAX,
            generation: Some(u64::MAX),
        };
        let kind = Some(Kind::Register(register));
        decode(&wire::AgentMessage { kind }.encode_to_vec())
    };
    let Ok(AgentMessage::Register { version, .. }) = register("worker", "c") else {
        panic!("not registered")
    };
    assert!(
        version.starts_with("1.0[2Jx") && version.len() <= MAX_VERSION,
        "{version}"
    );
    let long = "x".repeat(MAX_NAME + 1);
    for (container, id, what) in [
        (long.as_str(), "c", "container"),
        ("wor\nker", "c", "container"),
        ("worker", long.as_str(), "container id"),
        ("worker", "c\u{7f}", "container id"),
    ] {
        let refused = register(container, id).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("its {what} is longer")), "{refused}");
    }
}
