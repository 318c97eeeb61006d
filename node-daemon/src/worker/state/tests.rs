use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::facts::ListedContainer;
use super::*;

const BASE: u64 = 1_000_000;

fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        namespace: "default".into(),
        name: format!("pod-{uid}"),
        group: "g".into(),
        job: "job".into(),
        index: 4,
        supervised: ["worker".to_owned()].into(),
    }
}

fn agent(phase: AgentPhase, generation: u64, revision: u64) -> AgentState {
    AgentState {
        phase,
        generation,
        epoch: 5,
        counter: generation,
        revision,
        since: i64::try_from(revision).unwrap(),
        detail: String::new(),
        needs_host_kill: false,
        host_kill_before: 0,
        heartbeat: Heartbeat::Well,
    }
}

fn desired(epoch: u64, generation: u64, release: bool) -> Desired {
    Desired {
        group: "g".into(),
        epoch,
        generation,
        counter: generation,
        release,
        fresh: BTreeSet::new(),
        stale: BTreeSet::new(),
        alone: BTreeMap::new(),
        grace_ms: 1000,
        terminal: vec![],
        heartbeat_timeout_ms: 0,
        ready_timeout_ms: 0,
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
                ended: *ended,
            })
            .collect(),
    }
}

fn sandbox(uid: &str) -> SandboxId {
    SandboxId::from(format!("sandbox-{uid}"))
}

fn exit(code: i32) -> Exit {
    Exit { code, signal: 0 }
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
        table.apply(input, 10);
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
    assert_eq!(table.apply(started.clone(), 0), known);
    for input in [started, created("p", "c"), registered("p", "c", 1)] {
        assert_eq!(table.apply(input, 0), Effects::default());
    }
    assert!(table.snapshot().is_empty());
    let effects = table.apply(state("c", 1, agent(AgentPhase::Fresh, 0, 1)), 0);
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
fn an_agent_that_comes_before_its_pod_is_known_is_not_lost() {
    let mut table = Table::new(BASE);
    table.apply(Input::Desired(vec![desired(1, 3, true)]), 0);
    table.apply(registered("p", "c", 1), 0);
    table.apply(state("c", 1, agent(AgentPhase::Running, 3, 9)), 0);
    let effects = table.apply(listed(table.tick, &["p"], &[("c", None)]), 0);
    assert_eq!(phases(&effects), [RUNNING]);
    assert_eq!(effects.targets.len(), 1);
}

#[test]
fn an_agent_of_no_known_pod_leaves_nothing_behind() {
    let mut table = Table::new(BASE);
    table.apply(registered("nowhere", "c", 1), 0);
    table.apply(state("c", 1, agent(AgentPhase::Running, 3, 9)), 0);
    assert_eq!(
        table.apply(Input::LinkDown("c".into(), LinkId(1)), 0).dropped,
        ["c".into()]
    );
    assert!(table.workers.is_empty());
}

#[test]
fn a_link_that_goes_down_unlinks_and_keeps_the_rest() {
    let mut table = with_worker(agent(AgentPhase::Exited(exit(3)), 7, 4));
    let effects = table.apply(Input::LinkDown("c".into(), LinkId(1)), 99);
    let report = &effects.reports[0];
    assert_eq!(report.phase, Phase::Unlinked(Some(exit(3))));
    assert_eq!((report.generation, report.counter, report.since), (7, 7, 99));
    // Registering alone says nothing yet of where the worker is.
    assert!(table.apply(registered("p", "c", 2), 100).reports.is_empty());
    let effects = table.apply(state("c", 2, agent(AgentPhase::Exited(exit(3)), 7, 4)), 101);
    assert_eq!(phases(&effects), [Phase::Agent(AgentPhase::Exited(exit(3)))]);
}

#[test]
fn the_newest_link_wins() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(registered("p", "c", 2), 0);
    table.apply(state("c", 2, agent(AgentPhase::Running, 1, 2)), 0);
    assert_eq!(
        table.apply(state("c", 1, agent(AgentPhase::Parked, 1, 3)), 0),
        Effects::default()
    );
    assert_eq!(
        table.apply(Input::LinkDown("c".into(), LinkId(1)), 0),
        Effects::default()
    );
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn stale_and_repeated_states_are_no_news() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 5));
    assert!(
        table
            .apply(state("c", 1, agent(AgentPhase::Fresh, 0, 4)), 0)
            .reports
            .is_empty()
    );
    assert!(
        table
            .apply(state("c", 1, agent(AgentPhase::Running, 1, 5)), 0)
            .reports
            .is_empty()
    );
}

#[test]
fn the_end_of_a_container_is_final() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let effects = table.apply(Input::Exited("c".into(), exit(17), 77), 80);
    assert_eq!(phases(&effects), [Phase::Lost(exit(17))]);
    assert_eq!((effects.reports[0].since, effects.reports[0].generation), (77, 2));
    for input in [
        state("c", 1, agent(AgentPhase::Exited(exit(17)), 2, 2)),
        Input::LinkDown("c".into(), LinkId(1)),
        Input::Exited("c".into(), exit(1), 90),
        Input::Removed("c".into()),
    ] {
        assert_eq!(table.apply(input, 81), Effects::default());
    }
    assert_eq!(table.snapshot()[0].phase, Phase::Lost(exit(17)));
}

#[test]
fn done_stays_done_whichever_comes_first() {
    let done = || agent(AgentPhase::Done(exit(0)), 2, 5);
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(state("c", 1, done()), 0);
    table.apply(Input::LinkDown("c".into(), LinkId(1)), 0);
    assert!(
        table
            .apply(Input::Exited("c".into(), exit(0), 9), 0)
            .reports
            .is_empty()
    );
    assert_eq!(table.snapshot()[0].phase, Phase::Agent(AgentPhase::Done(exit(0))));

    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(Input::Exited("c".into(), exit(0), 9), 0);
    assert_eq!(table.snapshot()[0].phase, Phase::Lost(exit(0)));
    table.apply(state("c", 1, done()), 0);
    assert_eq!(table.snapshot()[0].phase, Phase::Agent(AgentPhase::Done(exit(0))));
}

#[test]
fn a_container_that_ended_before_its_agent_spoke_is_lost() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), 0);
    table.apply(created("p", "c"), 0);
    let effects = table.apply(Input::Exited("c".into(), exit(128), 9), 0);
    assert_eq!(phases(&effects), [Phase::Lost(exit(128))]);
}

#[test]
fn exits_of_other_containers_are_not_ours() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    assert_eq!(
        table.apply(Input::Exited("sidecar".into(), exit(1), 9), 0),
        Effects::default()
    );
}

#[test]
fn a_listing_finds_what_ended_unseen() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let mark = table.mark();
    let effects = table.apply(listed(mark, &["p"], &[("c", Some((exit(137), 55)))]), 60);
    assert_eq!(phases(&effects), [Phase::Lost(exit(137))]);

    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let mark = table.mark();
    let effects = table.apply(listed(mark, &["p"], &[]), 60);
    assert_eq!(phases(&effects), [Phase::Lost(Exit::UNKNOWN)]);
    assert!(!effects.reports[0].detail.is_empty());
}

#[test]
fn a_listing_says_nothing_of_what_came_after_it_began() {
    let mut table = Table::new(BASE);
    let mark = table.mark();
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), 0);
    table.apply(created("p", "c"), 0);
    table.apply(registered("p", "c", 1), 0);
    table.apply(state("c", 1, agent(AgentPhase::Running, 1, 1)), 0);
    assert_eq!(table.apply(listed(mark, &[], &[]), 0), Effects::default());
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn a_container_in_creation_may_be_missing_from_any_listing() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), 0);
    table.apply(created("p", "c"), 0);
    let mark = table.mark();
    assert_eq!(table.apply(listed(mark, &["p"], &[]), 0), Effects::default());
    // NRI says so where the creation fails.
    assert_eq!(table.apply(Input::Removed("c".into()), 0).dropped, ["c".into()]);
    assert!(table.snapshot().is_empty());
}

#[test]
fn pods_go_with_their_last_sandbox() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(Input::PodStarted("second".into(), pod("p")), 0);
    assert_eq!(
        table.apply(Input::PodRemoved(sandbox("p"), "p".into()), 0),
        Effects::default()
    );
    let effects = table.apply(Input::PodRemoved("second".into(), "p".into()), 0);
    assert_eq!(effects.dropped, ["c".into()]);
    assert_eq!(effects.pods_gone, ["p".into()]);
    assert!(table.snapshot().is_empty() && table.workers.is_empty() && table.pods.is_empty());
}

#[test]
fn synchronizing_is_the_whole_picture() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(registered("unknown", "x", 7), 0);
    let effects = table.apply(
        Input::Synchronized {
            pods: vec![(sandbox("q"), pod("q"))],
            containers: vec![("q".into(), "d".into(), "worker".into())],
        },
        0,
    );
    assert_eq!(effects.pods_gone, ["p".into()]);
    assert_eq!(effects.dropped, ["c".into(), "x".into()]);
    assert_eq!(table.workers.keys().cloned().collect::<Vec<_>>(), ["d".into()]);
}

#[test]
fn targets_go_out_once_and_again_on_a_new_link() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let effects = table.apply(Input::Desired(vec![desired(5, 2, false)]), 0);
    let (id, link, target) = &effects.targets[0];
    assert_eq!(
        (id, *link, target.generation, target.release),
        (&"c".into(), LinkId(1), 2, false)
    );
    assert!(
        table
            .apply(Input::Desired(vec![desired(5, 2, false)]), 0)
            .targets
            .is_empty()
    );
    assert_eq!(
        table
            .apply(Input::Desired(vec![desired(5, 2, true)]), 0)
            .targets
            .len(),
        1
    );
    let again = table.apply(registered("p", "c", 2), 0).targets;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].1, LinkId(2));
}

#[test]
fn a_former_leader_is_not_obeyed_and_learns_of_the_newer_one() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 2, false)]), 0);
    let before = table.snapshot()[0].revision;
    let effects = table.apply(Input::Desired(vec![desired(8, 3, true)]), 0);
    assert!(effects.targets.is_empty());
    assert_eq!(effects.stale, [("g".into(), 8, 9)]);
    assert_eq!(effects.reports[0].epoch, 9);
    assert!(effects.reports[0].revision > before);
    assert_eq!(table.groups[&"g".into()].generation, 2);
}

#[test]
fn a_snapshot_carries_the_highest_epoch() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 1, true)]), 0);
    assert_eq!(table.snapshot()[0].epoch, 9);
}

#[test]
fn forgetting_touches_no_worker() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 1, true)]), 0);
    table.apply(Input::Forget("g".into(), 8), 0);
    assert!(!table.groups.is_empty(), "a former leader's word");
    assert_eq!(table.apply(Input::Forget("g".into(), 9), 0), Effects::default());
    assert!(table.groups.is_empty());
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn a_container_that_was_replaced_before_this_daemon_heard_of_it_is_no_news() {
    let mut table = Table::new(BASE);
    let dead = ("old", Some((exit(128), 40)));
    let seen = table.apply(listed(0, &["p"], &[dead, ("new", None)]), 50);
    assert_eq!(phases(&seen), []);
    table.apply(registered("p", "new", 1), 60);
    let spoke = table.apply(state("new", 1, agent(AgentPhase::Running, 0, 1)), 60);
    assert_eq!(phases(&spoke), [RUNNING]);
    let mark = table.mark();
    let again = table.apply(listed(mark, &["p"], &[dead, ("new", None)]), 70);
    assert_eq!(phases(&again), []);

    // Nobody has taken its place yet.
    let mut table = Table::new(BASE);
    let alone = table.apply(listed(0, &["p"], &[dead]), 50);
    assert_eq!(phases(&alone), [Phase::Lost(exit(128))]);
    let mark = table.mark();
    let replaced = table.apply(listed(mark, &["p"], &[dead, ("new", None)]), 60);
    assert_eq!(phases(&replaced), []);

    // Its agent was heard.
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let ended = [("c", Some((exit(137), 40))), ("new", None)];
    let mark = table.mark();
    let heard = table.apply(listed(mark, &["p"], &ended), 50);
    assert_eq!(phases(&heard), [Phase::Lost(exit(137))]);
    assert_eq!(heard.reports[0].generation, 1);
}

#[test]
fn the_exit_that_is_known_later_replaces_the_unknown_one() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    // containerd was restarted: NRI no longer names the container that has ended meanwhile.
    let gone = Input::Synchronized {
        pods: vec![(sandbox("p"), pod("p"))],
        containers: vec![],
    };
    let first = table.apply(gone.clone(), 50);
    assert_eq!(phases(&first), [Phase::Lost(Exit::UNKNOWN)]);
    let mark = table.mark();
    let second = table.apply(listed(mark, &["p"], &[("c", Some((exit(42), 40)))]), 60);
    assert_eq!(phases(&second), [Phase::Lost(exit(42))]);
    assert_eq!(
        (second.reports[0].since, second.reports[0].detail.as_str()),
        (40, "")
    );
    assert!(second.reports[0].revision > first.reports[0].revision);
    // From now on it is known.
    for later in [
        gone,
        Input::Exited("c".into(), exit(3), 70),
        Input::Removed("c".into()),
    ] {
        assert_eq!(phases(&table.apply(later, 80)), []);
    }
}

#[test]
fn an_agent_knows_of_no_epoch_that_it_was_not_told() {
    let of = |epoch, revision| AgentState {
        epoch,
        ..agent(AgentPhase::Running, 1, revision)
    };
    let epochs = |effects: Effects| -> Vec<u64> { effects.reports.iter().map(|state| state.epoch).collect() };
    // Of before this daemon: the API server's store may have been restored from a backup since.
    let mut table = with_worker(of(7, 1));
    assert_eq!(table.snapshot()[0].epoch, 7);
    table.apply(state("c", 1, of(u64::MAX, 2)), 0);
    assert_eq!(table.snapshot()[0].epoch, 7);
    table.apply(Input::Desired(vec![desired(9, 1, true)]), 0);
    assert_eq!(epochs(table.apply(state("c", 1, of(9, 3)), 0)), [9]);
    // Nor by another connection, which is told again what there is.
    table.apply(registered("p", "c", 2), 0);
    table.apply(state("c", 2, of(10, 4)), 0);
    assert_eq!(table.snapshot()[0].epoch, 9);
}

#[test]
fn the_host_kills_where_the_agent_may_not() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let stuck = AgentState {
        needs_host_kill: true,
        host_kill_before: 7,
        ..agent(AgentPhase::Stopping, 2, 2)
    };
    let ask = HostKill {
        container: "c".into(),
        agent_pid: 100,
        before: 7,
    };
    let effects = table.apply(state("c", 1, stuck), 0);
    assert_eq!((effects.kills, effects.spared), (vec![ask], vec![]));
    // The next worker runs: whatever is under way has to end.
    let effects = table.apply(state("c", 1, agent(AgentPhase::Running, 2, 3)), 0);
    assert_eq!((effects.kills, effects.spared), (vec![], vec!["c".into()]));
    let effects = table.apply(state("c", 1, agent(AgentPhase::Running, 2, 4)), 0);
    assert_eq!(effects.spared, []);
}

#[test]
fn ended_incarnations_are_kept_within_bounds() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), 0);
    for number in 0..20 {
        let id = format!("c{number:02}");
        table.apply(created("p", &id), 0);
        table.apply(Input::Exited(id.as_str().into(), exit(1), number), 0);
    }
    table.apply(created("p", "last"), 0);
    let ids: Vec<_> = table.workers.keys().map(ContainerId::as_str).collect();
    assert_eq!(ids, ["c17", "c18", "c19", "last"]);
}

fn any_agent() -> impl Strategy<Value = AgentState> {
    let phase = prop_oneof![
        Just(AgentPhase::Fresh),
        Just(AgentPhase::Running),
        Just(AgentPhase::Stopping),
        Just(AgentPhase::Parked),
        Just(AgentPhase::Exited(exit(1))),
        Just(AgentPhase::Done(exit(0))),
    ];
    (phase, 0u64..5, 0u64..50, any::<bool>()).prop_map(|(phase, generation, revision, needs_host_kill)| {
        AgentState {
            needs_host_kill,
            ..agent(phase, generation, revision)
        }
    })
}

fn any_input() -> impl Strategy<Value = Input> {
    let pods = || prop_oneof![Just("p"), Just("q")];
    let ids = || prop_oneof![Just("c"), Just("d"), Just("e")];
    let subset = prop::collection::btree_set(ids(), 0..3);
    prop_oneof![
        pods().prop_map(|uid| Input::PodStarted(sandbox(uid), pod(uid))),
        pods().prop_map(|uid| Input::PodRemoved(sandbox(uid), uid.into())),
        (pods(), ids()).prop_map(|(pod, id)| created(pod, id)),
        ids().prop_map(|id| Input::Removed(id.into())),
        (ids(), 0i32..3).prop_map(|(id, code)| Input::Exited(id.into(), exit(code), 1)),
        (pods(), ids(), 0u64..6).prop_map(|(pod, id, link)| registered(pod, id, link)),
        (ids(), 0u64..6, any_agent()).prop_map(|(id, link, agent)| state(id, link, agent)),
        (ids(), 0u64..6).prop_map(|(id, link)| Input::LinkDown(id.into(), LinkId(link))),
        (0u64..4, 0u64..4, any::<bool>()).prop_map(|(epoch, generation, release)| {
            Input::Desired(vec![desired(epoch, generation, release)])
        }),
        (0u64..4).prop_map(|epoch| Input::Forget("g".into(), epoch)),
        (subset, 0u64..40).prop_map(|(present, mark)| {
            let containers: Vec<_> = present.into_iter().map(|id| (id, None)).collect();
            listed(mark, &["p"], &containers)
        }),
    ]
}

proptest! {
    /// Whatever happens in whatever order: revisions grow, final phases are final, what was reported is what a snapshot says, and targets never
    /// carry less than the highest epoch.
    #[test]
    fn the_table_keeps_its_promises(inputs in prop::collection::vec(any_input(), 0..80)) {
        let mut table = Table::new(BASE);
        let mut known: BTreeMap<ContainerId, WorkerState> = BTreeMap::new();
        let mut revision = BASE;
        for input in inputs {
            let forgotten = matches!(input, Input::Forget(..));
            let epochs = table.groups.get(&"g".into()).map_or(0, |desired| desired.epoch);
            let effects = table.apply(input, 5);
            for report in &effects.reports {
                prop_assert!(report.revision > revision);
                revision = report.revision;
                let id = &report.incarnation.container;
                if let Some(before) = known.insert(id.clone(), report.clone()) {
                    match before.phase {
                        Phase::Agent(AgentPhase::Done(_)) => {
                            prop_assert!(matches!(report.phase, Phase::Agent(AgentPhase::Done(_))));
                        }
                        Phase::Lost(_) => prop_assert!(matches!(
                            report.phase,
                            Phase::Lost(_) | Phase::Agent(AgentPhase::Done(_))
                        )),
                        _ => {}
                    }
                }
            }
            for (id, link, target) in &effects.targets {
                prop_assert!(target.epoch >= epochs || forgotten);
                let worker = &table.workers[id];
                prop_assert_eq!(worker.link.as_ref().map(|current| current.id), Some(*link));
            }
            for id in &effects.dropped {
                known.remove(id);
            }
            let snapshot: Vec<_> = table.snapshot().into_iter().map(|state| (state.revision, state.phase)).collect();
            let expected: Vec<_> = known.values().map(|state| (state.revision, state.phase)).collect();
            prop_assert_eq!(snapshot, expected);
        }
    }
}

#[test]
fn a_heartbeat_is_reported_as_the_agent_says_and_not_while_it_is_out_of_sight() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let hung = AgentState {
        heartbeat: Heartbeat::Missed,
        ..agent(AgentPhase::Running, 1, 2)
    };
    let said = |effects: &Effects| -> Vec<_> {
        effects
            .reports
            .iter()
            .map(|report| (report.phase, report.heartbeat))
            .collect()
    };
    assert_eq!(
        said(&table.apply(state("c", 1, hung.clone()), 20)),
        [(RUNNING, Heartbeat::Missed)]
    );
    assert_eq!(
        said(&table.apply(Input::LinkDown("c".into(), LinkId(1)), 30)),
        [(Phase::Unlinked(None), Heartbeat::Well)]
    );
    table.apply(registered("p", "c", 2), 40);
    assert_eq!(
        said(&table.apply(state("c", 2, hung), 50)),
        [(RUNNING, Heartbeat::Missed)]
    );
    assert_eq!(
        said(&table.apply(state("c", 2, agent(AgentPhase::Running, 1, 3)), 60)),
        [(RUNNING, Heartbeat::Well)]
    );
}
