mod listings;
mod orders;
mod properties;
mod standbys;
mod unsupervised;

use std::collections::BTreeSet;

use super::super::facts::{ListedContainer, LiveContainer};
use super::super::types::{Generation, Heartbeat, Phase, Pod, Progress, SandboxId, StaleOrder, WorkerState};
use super::*;
use crate::testing;

const BASE: u64 = 1_000_000;

fn pod(uid: &str) -> Pod {
    Pod {
        name: format!("pod-{uid}"),
        index: 4,
        started_again: true,
        ..testing::pod(uid)
    }
}

fn agent(phase: AgentPhase, generation: u64, revision: u64) -> AgentState {
    AgentState {
        phase,
        generation: Generation(generation),
        epoch: Epoch(5),
        counted_restarts: generation,
        revision,
        since: UnixNanos(i64::try_from(revision).unwrap()),
        detail: String::new(),
        needs_host_kill: false,
        host_kill_before: None,
        heartbeat: Heartbeat::Well,
        starts: None,
        standbys: None,
        progress: Progress::default(),
    }
}

fn desired(epoch: u64, generation: u64, release: bool) -> Desired {
    Desired {
        release,
        ..testing::desired(epoch, generation)
    }
}

fn created(pod: &str, id: &str) -> Input {
    Input::Created {
        pod: pod.into(),
        id: id.into(),
        name: "worker".into(),
    }
}

fn registered(pod: &str, id: &str, link: u64) -> Input {
    Input::Registered {
        pod: pod.into(),
        id: id.into(),
        name: "worker".into(),
        link: LinkId(link),
        pid: 100,
    }
}

fn state(id: &str, link: u64, state: AgentState) -> Input {
    Input::State(id.into(), LinkId(link), state)
}

fn listed(mark: u64, pods: &[&str], containers: &[(&str, Option<(Exit, i64)>)]) -> Input {
    Input::Listed {
        mark,
        pods: pods.iter().map(|uid| (sandbox(uid), pod(uid))).collect(),
        containers: containers
            .iter()
            .map(|(id, ended)| ListedContainer {
                pod: "p".into(),
                id: (*id).into(),
                name: "worker".into(),
                ended: ended.map(|(exit, at)| Ended {
                    exit,
                    at: UnixNanos(at),
                }),
            })
            .collect(),
    }
}

fn present(pod: &str, id: &str, without_agent: bool) -> LiveContainer {
    LiveContainer {
        pod: pod.into(),
        id: id.into(),
        name: "worker".into(),
        without_agent,
    }
}

fn sandbox(uid: &str) -> SandboxId {
    SandboxId::from(format!("sandbox-{uid}"))
}

fn exit(code: i32) -> Exit {
    Exit { code, signal: 0 }
}

fn exited(id: ContainerId, exit: Exit, at: i64) -> Input {
    let at = UnixNanos(at);
    Input::Exited(id, Ended { exit, at })
}

/// A table with pod `p`, container `c` in it, and its agent on link 1 in this state.
fn with_worker(first: AgentState) -> Table {
    let mut table = Table::new(BASE);
    let inputs = [
        Input::PodStarted(sandbox("p"), pod("p")),
        created("p", "c"),
        registered("p", "c", 1),
        state("c", 1, first),
    ];
    for input in inputs {
        table.apply(input, UnixNanos(10));
    }
    table
}

fn phases(effects: &Effects) -> Vec<Phase> {
    effects.reports.iter().map(|report| report.phase).collect()
}

const RUNNING: Phase = Phase::Agent(AgentPhase::Running);

#[test]
fn nothing_is_reported_before_the_agent_speaks() {
    let mut table = Table::new(BASE);
    let known = Effects {
        pods_known: vec!["p".into()],
        ..Effects::default()
    };
    let started = Input::PodStarted(sandbox("p"), pod("p"));
    assert_eq!(table.apply(started.clone(), UnixNanos(0)), known);
    for input in [started, created("p", "c"), registered("p", "c", 1)] {
        assert_eq!(table.apply(input, UnixNanos(0)), Effects::default());
    }
    assert!(table.snapshot().is_empty());
    let effects = table.apply(state("c", 1, agent(AgentPhase::Fresh, 0, 1)), UnixNanos(0));
    let report = &effects.reports[0];
    assert_eq!(report.phase, Phase::Agent(AgentPhase::Fresh));
    assert_eq!(
        (report.job.as_str(), report.index, report.pod_name.as_str()),
        ("job", 4, "pod-p")
    );
    assert_eq!(report.revision, BASE + 1);
    assert_eq!(table.snapshot(), effects.reports);
}

#[test]
fn a_container_keeps_its_pod_whichever_agent_registers() {
    let mut table = with_worker(agent(AgentPhase::Running, 0, 1));
    table.apply(Input::PodStarted(sandbox("q"), pod("q")), UnixNanos(10));
    let before = table.snapshot();
    assert!(table.is_of_another(&"c".into(), &"q".into()) && !table.is_of_another(&"c".into(), &"p".into()));
    for input in [
        registered("q", "c", 2),
        state("c", 2, agent(AgentPhase::Done(exit(0)), 9, 9)),
    ] {
        assert_eq!(table.apply(input, UnixNanos(20)), Effects::default());
    }
    assert_eq!(table.snapshot(), before);
    // Its own agent is served as before.
    let effects = table.apply(state("c", 1, agent(AgentPhase::Parked, 0, 2)), UnixNanos(30));
    assert_eq!(phases(&effects), [Phase::Agent(AgentPhase::Parked)]);
}

#[test]
fn an_agent_that_registers_before_its_pod_is_known_is_not_lost() {
    let mut table = Table::new(BASE);
    table.apply(Input::Desired(vec![desired(1, 3, true)]), UnixNanos(0));
    table.apply(registered("p", "c", 1), UnixNanos(0));
    table.apply(state("c", 1, agent(AgentPhase::Running, 3, 9)), UnixNanos(0));
    let effects = table.apply(listed(table.tick, &["p"], &[("c", None)]), UnixNanos(0));
    assert_eq!(phases(&effects), [RUNNING]);
    assert_eq!(effects.targets.len(), 1);
}

#[test]
fn an_agent_of_no_known_pod_leaves_nothing_behind() {
    let mut table = Table::new(BASE);
    table.apply(registered("nowhere", "c", 1), UnixNanos(0));
    table.apply(state("c", 1, agent(AgentPhase::Running, 3, 9)), UnixNanos(0));
    assert_eq!(
        table
            .apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(0))
            .dropped,
        ["c".into()]
    );
    assert!(table.workers.is_empty());
}

#[test]
fn a_link_that_goes_down_unlinks_and_keeps_the_rest() {
    let mut table = with_worker(agent(AgentPhase::Exited(exit(3)), 7, 4));
    let effects = table.apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(99));
    let report = &effects.reports[0];
    assert_eq!(report.phase, Phase::Unlinked(Some(exit(3))));
    assert_eq!(
        (report.generation, report.counted_restarts, report.since),
        (Generation(7), 7, UnixNanos(99))
    );
    // A registration does not show the worker's state.
    assert!(
        table
            .apply(registered("p", "c", 2), UnixNanos(100))
            .reports
            .is_empty()
    );
    let effects = table.apply(
        state("c", 2, agent(AgentPhase::Exited(exit(3)), 7, 4)),
        UnixNanos(101),
    );
    assert_eq!(phases(&effects), [Phase::Agent(AgentPhase::Exited(exit(3)))]);
}

#[test]
fn the_newest_link_wins() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(registered("p", "c", 2), UnixNanos(0));
    table.apply(state("c", 2, agent(AgentPhase::Running, 1, 2)), UnixNanos(0));
    assert_eq!(
        table.apply(state("c", 1, agent(AgentPhase::Parked, 1, 3)), UnixNanos(0)),
        Effects::default()
    );
    assert_eq!(
        table.apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(0)),
        Effects::default()
    );
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn stale_and_repeated_states_are_not_reported() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 5));
    assert!(
        table
            .apply(state("c", 1, agent(AgentPhase::Fresh, 0, 4)), UnixNanos(0))
            .reports
            .is_empty()
    );
    assert!(
        table
            .apply(state("c", 1, agent(AgentPhase::Running, 1, 5)), UnixNanos(0))
            .reports
            .is_empty()
    );
}

#[test]
fn the_end_of_a_container_is_final() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let effects = table.apply(exited("c".into(), exit(17), 77), UnixNanos(80));
    assert_eq!(phases(&effects), [Phase::Lost(exit(17))]);
    assert_eq!(
        (effects.reports[0].since, effects.reports[0].generation),
        (UnixNanos(77), Generation(2))
    );
    for input in [
        state("c", 1, agent(AgentPhase::Exited(exit(17)), 2, 2)),
        Input::LinkDown("c".into(), LinkId(1)),
        exited("c".into(), exit(1), 90),
        Input::Removed("c".into()),
    ] {
        assert_eq!(table.apply(input, UnixNanos(81)), Effects::default());
    }
    assert_eq!(table.snapshot()[0].phase, Phase::Lost(exit(17)));
}

#[test]
fn done_stays_done_whichever_comes_first() {
    let done = || agent(AgentPhase::Done(exit(0)), 2, 5);
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(state("c", 1, done()), UnixNanos(0));
    // Any process of the pod may claim to be its agent.
    let claimed = table.apply(state("c", 1, agent(AgentPhase::Running, 2, 6)), UnixNanos(0));
    assert_eq!(claimed, Effects::default());
    table.apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(0));
    assert!(
        table
            .apply(exited("c".into(), exit(0), 9), UnixNanos(0))
            .reports
            .is_empty()
    );
    assert_eq!(table.snapshot()[0].phase, Phase::Agent(AgentPhase::Done(exit(0))));

    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(exited("c".into(), exit(0), 9), UnixNanos(0));
    assert_eq!(table.snapshot()[0].phase, Phase::Lost(exit(0)));
    table.apply(state("c", 1, done()), UnixNanos(0));
    assert_eq!(table.snapshot()[0].phase, Phase::Agent(AgentPhase::Done(exit(0))));
}

#[test]
fn a_container_that_ended_before_its_agent_spoke_is_lost() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    table.apply(created("p", "c"), UnixNanos(0));
    let effects = table.apply(exited("c".into(), exit(128), 9), UnixNanos(0));
    assert_eq!(phases(&effects), [Phase::Lost(exit(128))]);
}

#[test]
fn exits_of_other_containers_are_not_ours() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    assert_eq!(
        table.apply(exited("sidecar".into(), exit(1), 9), UnixNanos(0)),
        Effects::default()
    );
}

#[test]
fn an_agent_has_no_generation_that_it_was_not_sent() {
    let counts = |table: &Table| {
        let state = table.snapshot().remove(0);
        (state.generation.0, state.counted_restarts)
    };
    // From before this daemon: it may know more than anything else does.
    let mut table = with_worker(agent(AgentPhase::Running, 7, 1));
    assert_eq!(counts(&table), (7, 7));
    table.apply(
        state("c", 1, agent(AgentPhase::Parked, u64::MAX, 2)),
        UnixNanos(0),
    );
    assert_eq!(counts(&table), (7, 7));
    table.apply(state("c", 1, agent(AgentPhase::Parked, 9, 3)), UnixNanos(0));
    assert_eq!(counts(&table), (7, 7));
    // If that is true after all, it counts once this daemon has received the order, too.
    let effects = table.apply(Input::Desired(vec![desired(9, 9, false)]), UnixNanos(0));
    assert_eq!(effects.reports.len(), 1);
    assert_eq!(counts(&table), (9, 9));
}

#[test]
fn the_host_kills_if_the_agent_may_not() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let stuck = AgentState {
        needs_host_kill: true,
        host_kill_before: Some(BootNanos(7)),
        ..agent(AgentPhase::Stopping, 2, 2)
    };
    let ask = HostKill {
        namespace: "default".to_owned(),
        container: "c".into(),
        agent_pid: 100,
        before: Some(BootNanos(7)),
    };
    let effects = table.apply(state("c", 1, stuck), UnixNanos(0));
    assert_eq!((effects.kills, effects.spared), (vec![ask], vec![]));
    // The next worker runs: any kill under way has to end.
    let effects = table.apply(state("c", 1, agent(AgentPhase::Running, 2, 3)), UnixNanos(0));
    assert_eq!((effects.kills, effects.spared), (vec![], vec!["c".into()]));
    let effects = table.apply(state("c", 1, agent(AgentPhase::Running, 2, 4)), UnixNanos(0));
    assert_eq!(effects.spared, []);
}

#[test]
fn ended_incarnations_are_kept_within_bounds() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    for number in 0..20 {
        let id = format!("c{number:02}");
        table.apply(created("p", &id), UnixNanos(0));
        table.apply(exited(id.as_str().into(), exit(1), number), UnixNanos(0));
    }
    table.apply(created("p", "last"), UnixNanos(0));
    let ids: Vec<_> = table.workers.keys().map(ContainerId::as_str).collect();
    assert_eq!(ids, ["c17", "c18", "c19", "last"]);
}

#[test]
fn a_heartbeat_is_reported_as_the_agent_says_and_not_while_it_is_unlinked() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let hung = AgentState {
        heartbeat: Heartbeat::Missed,
        ..agent(AgentPhase::Running, 1, 2)
    };
    let heartbeats = |effects: &Effects| -> Vec<_> {
        effects
            .reports
            .iter()
            .map(|report| (report.phase, report.heartbeat))
            .collect()
    };
    assert_eq!(
        heartbeats(&table.apply(state("c", 1, hung.clone()), UnixNanos(20))),
        [(RUNNING, Heartbeat::Missed)]
    );
    assert_eq!(
        heartbeats(&table.apply(Input::LinkDown("c".into(), LinkId(1)), UnixNanos(30))),
        [(Phase::Unlinked(None), Heartbeat::Well)]
    );
    table.apply(registered("p", "c", 2), UnixNanos(40));
    assert_eq!(
        heartbeats(&table.apply(state("c", 2, hung), UnixNanos(50))),
        [(RUNNING, Heartbeat::Missed)]
    );
    assert_eq!(
        heartbeats(&table.apply(state("c", 2, agent(AgentPhase::Running, 1, 3)), UnixNanos(60))),
        [(RUNNING, Heartbeat::Well)]
    );
}
