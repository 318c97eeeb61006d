//! Turns what the control plane wants of a group into the target of one agent. Pure.

use super::types::{Desired, Incarnation, Target, TerminalCodes, WorkerRestart};

/// The target of the worker `(job, container)` at this incarnation.
#[must_use]
pub fn target(desired: &Desired, job: &str, container: &str, incarnation: &Incarnation) -> Target {
    let terminal_codes = desired
        .terminal_rules
        .iter()
        .filter(|rule| rule.container.as_deref().is_none_or(|name| name == container))
        .filter(|rule| rule.job.as_deref().is_none_or(|name| name == job))
        .map(|rule| TerminalCodes {
            negated: rule.negated,
            codes: rule.codes.clone(),
        })
        .collect();
    let of_group = WorkerRestart {
        generation: desired.generation,
        release: desired.release,
    };
    let restart = desired.worker_restarts.get(incarnation).copied();
    // A worker restart that is not above the group's generation is out of date.
    let restart = restart.filter(|restart| restart.generation > desired.generation);
    let WorkerRestart { generation, release } = restart.unwrap_or(of_group);
    Target {
        epoch: desired.epoch,
        generation,
        counted_restarts: desired.counted_restarts,
        release,
        start_fresh: desired.fresh.contains(incarnation),
        grace_ms: desired.grace_ms,
        terminal_codes,
        heartbeat_timeout_ms: desired.heartbeat_timeout_ms,
        ready_timeout_ms: desired.ready_timeout_ms,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::worker::types::{Epoch, Generation, TerminalRule, WorkerRestart};

    fn incarnation(container: &str) -> Incarnation {
        Incarnation {
            pod: "p".into(),
            container: container.into(),
        }
    }

    fn rule(container: Option<&str>, job: Option<&str>, code: i32) -> TerminalRule {
        TerminalRule {
            negated: false,
            codes: vec![code],
            container: container.map(str::to_owned),
            job: job.map(str::to_owned),
        }
    }

    fn desired() -> Desired {
        Desired {
            group: "g".into(),
            namespace: None,
            epoch: Epoch(3),
            generation: Generation(7),
            counted_restarts: 6,
            release: true,
            fresh: BTreeSet::from([incarnation("c1")]),
            stale: BTreeSet::new(),
            worker_restarts: BTreeMap::new(),
            grace_ms: 5000,
            terminal_rules: vec![
                rule(None, None, 1),
                rule(Some("worker"), Some("job-0"), 2),
                rule(Some("other"), Some("job-0"), 3),
                rule(None, Some("job-1"), 4),
            ],
            heartbeat_timeout_ms: 0,
            ready_timeout_ms: 0,
        }
    }

    #[test]
    fn exit_codes_are_narrowed_to_the_worker() {
        let codes = |job: &str, container: &str| -> Vec<i32> {
            target(&desired(), job, container, &incarnation("c9"))
                .terminal_codes
                .into_iter()
                .flat_map(|rule| rule.codes)
                .collect()
        };
        assert_eq!(codes("job-0", "worker"), [1, 2]);
        assert_eq!(codes("job-0", "other"), [1, 3]);
        assert_eq!(codes("job-1", "worker"), [1, 4]);
    }

    #[test]
    fn only_named_incarnations_start_fresh() {
        let start =
            |container: &str| target(&desired(), "job-0", "worker", &incarnation(container)).start_fresh;
        assert!(start("c1"));
        assert!(!start("c2"));
    }

    #[test]
    fn a_worker_under_a_worker_restart_has_a_generation_of_its_own() {
        let targets = |generation, release| {
            let mut desired = desired();
            let restart = WorkerRestart {
                generation: Generation(generation),
                release,
            };
            desired.worker_restarts.insert(incarnation("c2"), restart);
            let of = |container: &str| {
                let target = target(&desired, "job-0", "worker", &incarnation(container));
                (target.generation.0, target.release)
            };
            (of("c1"), of("c2"))
        };
        assert_eq!(targets(9, true), ((7, true), (9, true)));
        assert_eq!(targets(9, false), ((7, true), (9, false)));
        assert_eq!(
            targets(6, false),
            ((7, true), (7, true)),
            "the group has gone on since"
        );
    }

    #[test]
    fn the_rest_is_the_groups() {
        let target = target(&desired(), "job-0", "worker", &incarnation("c1"));
        assert_eq!(
            (
                target.epoch,
                target.generation,
                target.counted_restarts,
                target.release,
                target.grace_ms
            ),
            (Epoch(3), Generation(7), 6, true, 5000)
        );
    }
}
