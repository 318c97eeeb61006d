//! What agents say about standbys, and what is reported of it.

use super::super::super::types::{Standbys, Starts};
use super::*;

fn with(phase: AgentPhase, revision: u64, ready: u32) -> AgentState {
    AgentState {
        starts: Some(Starts {
            standby: 1,
            cold: 0,
            ahead_ms: 900,
        }),
        standbys: Some(Standbys {
            wanted: 2,
            ready,
            memory_kib: 1 << 20,
            modules: 800,
            reason: String::new(),
        }),
        // The phase is as old as it was.
        since: UnixNanos(1),
        ..agent(phase, 1, revision)
    }
}

/// The phase, how many started from a standby, and how many are ready.
fn seen(effects: &Effects) -> Vec<(Phase, Option<u32>, Option<u32>)> {
    let reports = effects.reports.iter();
    reports
        .map(|report| {
            let ready = report.standbys.as_ref().map(|standbys| standbys.ready);
            (report.phase, report.starts.map(|starts| starts.standby), ready)
        })
        .collect()
}

#[test]
fn a_change_of_standbys_alone_is_a_report_like_any_other() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let first = table.apply(state("c", 1, with(AgentPhase::Running, 2, 0)), UnixNanos(10));
    assert_eq!(seen(&first), [(RUNNING, Some(1), Some(0))]);
    let next = table.apply(state("c", 1, with(AgentPhase::Running, 3, 2)), UnixNanos(20));
    assert_eq!(seen(&next), [(RUNNING, Some(1), Some(2))]);
    assert!(next.reports[0].revision > first.reports[0].revision);
    // Nothing has changed but the agent's own revision.
    let same = table.apply(state("c", 1, with(AgentPhase::Running, 4, 2)), UnixNanos(30));
    assert_eq!(seen(&same), []);
    // An older agent has taken over.
    let none = table.apply(state("c", 1, agent(AgentPhase::Running, 1, 5)), UnixNanos(40));
    assert_eq!(seen(&none), [(RUNNING, None, None)]);
}

#[test]
fn mere_progress_waits_and_goes_with_any_other_change() {
    let at = |phase, revision, step| AgentState {
        progress: Progress {
            step: Some(step),
            ..Progress::default()
        },
        since: UnixNanos(1),
        ..agent(phase, 1, revision)
    };
    let steps = |reports: &[WorkerState]| {
        reports
            .iter()
            .map(|report| report.progress.step)
            .collect::<Vec<_>>()
    };
    let mut table = with_worker(at(AgentPhase::Running, 1, 1));
    let next = table.apply(state("c", 1, at(AgentPhase::Running, 2, 2)), UnixNanos(10));
    assert_eq!(
        (steps(&next.reports), steps(&next.progress)),
        (vec![], vec![Some(2)])
    );
    let ended = table.apply(
        state("c", 1, at(AgentPhase::Exited(exit(1)), 3, 3)),
        UnixNanos(20),
    );
    assert_eq!(
        (steps(&ended.reports), steps(&ended.progress)),
        (vec![Some(3)], vec![])
    );
    assert!(ended.reports[0].revision > next.progress[0].revision);
}

#[test]
fn an_unlinked_worker_keeps_its_standbys_and_one_that_has_ended_has_none() {
    let running = || with_worker(with(AgentPhase::Running, 1, 2));
    let mut table = running();
    let down = table.apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(10));
    assert_eq!(seen(&down), [(Phase::Unlinked(None), Some(1), Some(2))]);
    let lost = table.apply(exited("c".into(), exit(1), 20), UnixNanos(20));
    assert_eq!(seen(&lost), [(Phase::Lost(exit(1)), Some(1), None)]);

    let done = AgentPhase::Done(exit(0));
    let effects = running().apply(state("c", 1, with(done, 2, 2)), UnixNanos(10));
    assert_eq!(seen(&effects), [(Phase::Agent(done), Some(1), None)]);
}
