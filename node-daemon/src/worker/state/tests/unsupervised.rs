//! Workers that were started without their agent.

use super::*;
use crate::worker::types::WorkerRestart;

/// NRI shows container `c` of pod `p`, made without its agent, to a daemon that has just started.
fn without_agent() -> Table {
    let mut table = Table::new(BASE);
    assert_eq!(synchronize(&mut table, "c", true), none());
    table
}

fn synchronize(table: &mut Table, id: &str, without_agent: bool) -> Vec<ContainerId> {
    let input = Input::Synchronized {
        pods: vec![(sandbox("p"), pod("p"))],
        containers: vec![present("p", id, without_agent)],
    };
    table.apply(input, UnixNanos(10)).stops
}

fn stopped_by(table: &mut Table, desired: Desired) -> Vec<ContainerId> {
    table.apply(Input::Desired(vec![desired]), UnixNanos(20)).stops
}

fn none() -> Vec<ContainerId> {
    Vec::new()
}

#[test]
fn one_is_stopped_when_its_group_stops_and_not_before() {
    let mut table = without_agent();
    assert_eq!(stopped_by(&mut table, desired(5, 0, true)), none());
    assert_eq!(stopped_by(&mut table, desired(5, 1, true)), none());
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), ["c".into()]);
    // A daemon that learns of it later.
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());
    assert_eq!(synchronize(&mut table, "c", true), ["c".into()]);
}

#[test]
fn one_generation_stops_one_container_of_a_worker() {
    let mut table = without_agent();
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), ["c".into()]);
    assert_eq!(stopped_by(&mut table, desired(6, 2, false)), none());
    table.apply(exited("c".into(), exit(137), 30), UnixNanos(30));
    // NRI did not put an agent into the next one either.
    assert_eq!(synchronize(&mut table, "d", true), none());
    assert_eq!(stopped_by(&mut table, desired(6, 3, false)), ["d".into()]);
}

#[test]
fn one_that_survives_its_stop_is_stopped_again() {
    let mut table = without_agent();
    let over = |table: &mut Table| table.apply(Input::StopOver("c".into()), UnixNanos(40)).stops;
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), ["c".into()]);
    // While that is under way nothing else requests it.
    assert_eq!(stopped_by(&mut table, desired(5, 3, false)), none());
    assert_eq!(over(&mut table), ["c".into()]);
    assert_eq!(over(&mut table), ["c".into()]);
    // It could not even start: the next fact requests it.
    table.not_stopped(&"c".into());
    assert_eq!(stopped_by(&mut table, desired(5, 3, false)), ["c".into()]);
    // Its group runs again: it is left unchanged until the next restart.
    assert_eq!(stopped_by(&mut table, desired(5, 3, true)), none());
    assert_eq!(over(&mut table), none());
    assert_eq!(stopped_by(&mut table, desired(5, 4, false)), ["c".into()]);
    // It has ended, and the next one is not stopped for that.
    table.apply(exited("c".into(), exit(137), 50), UnixNanos(50));
    assert_eq!(over(&mut table), none());
    assert_eq!(synchronize(&mut table, "d", true), none());
}

#[test]
fn one_whose_group_ran_at_a_generation_is_not_stopped_for_it() {
    // Generations fall if the API server's data were restored. Agents obey no lower one.
    let mut table = without_agent();
    assert_eq!(stopped_by(&mut table, desired(5, 4, true)), none());
    assert_eq!(stopped_by(&mut table, desired(6, 2, false)), none());
    assert_eq!(stopped_by(&mut table, desired(6, 4, false)), none());
    assert_eq!(stopped_by(&mut table, desired(6, 5, false)), ["c".into()]);
}

#[test]
fn workers_with_an_agent_or_no_hope_of_one_are_not_stopped() {
    let mut table = Table::new(BASE);
    synchronize(&mut table, "c", false);
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());

    // Whatever NRI says: an agent has reported.
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    synchronize(&mut table, "c", true);
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());
    let mut table = without_agent();
    table.apply(registered("p", "c", 1), UnixNanos(15));
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());

    // The kubelet does not start it again.
    let mut table = Table::new(BASE);
    let never = Pod {
        started_again: false,
        ..pod("p")
    };
    let input = Input::Synchronized {
        pods: vec![(sandbox("p"), never)],
        containers: vec![present("p", "c", true)],
    };
    table.apply(input, UnixNanos(10));
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());

    // A former leader is not obeyed.
    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    assert_eq!(stopped_by(&mut table, desired(4, 3, false)), none());
}

#[test]
fn the_end_of_the_container_before_is_reported_because_no_agent_will() {
    let mut table = without_agent();
    let mark = table.mark();
    let before = ("b", Some((exit(1), 5)));
    let effects = table.apply(listed(mark, &["p"], &[before, ("c", None)]), UnixNanos(30));
    assert_eq!(phases(&effects), [Phase::Lost(exit(1))]);
    assert_eq!(effects.reports[0].incarnation.container, "b".into());
}

#[test]
fn a_worker_restart_stops_it() {
    let mut table = without_agent();
    let mark = table.mark();
    let before = ("b", Some((exit(1), 5)));
    table.apply(listed(mark, &["p"], &[before, ("c", None)]), UnixNanos(30));
    let incarnation = Incarnation {
        pod: "p".into(),
        container: "b".into(),
    };
    let restart = |generation, release| WorkerRestart {
        generation: Generation(generation),
        release,
    };
    let worker_restarts = |generation, release| Desired {
        worker_restarts: [(incarnation.clone(), restart(generation, release))].into(),
        ..desired(5, 1, true)
    };
    assert_eq!(stopped_by(&mut table, worker_restarts(2, true)), none());
    assert_eq!(
        stopped_by(&mut table, worker_restarts(1, false)),
        none(),
        "a restart of all was later"
    );
    assert_eq!(stopped_by(&mut table, worker_restarts(2, false)), ["c".into()]);
    assert_eq!(stopped_by(&mut table, worker_restarts(2, false)), none());
}

/// Ends container `c`, and returns the generation at which its group was released.
fn ended(table: &mut Table, code: i32) -> Option<u64> {
    let effects = table.apply(exited("c".into(), exit(code), 40), UnixNanos(40));
    assert_eq!(phases(&effects), [Phase::Lost(exit(code))]);
    effects.reports[0]
        .released_generation
        .map(|generation| generation.0)
}

#[test]
fn one_that_fails_is_reported_as_released_with_its_peers() {
    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    stopped_by(&mut table, desired(5, 3, true));
    assert_eq!(ended(&mut table, 1), Some(3));
    // For good, whatever is ordered then.
    assert_eq!(stopped_by(&mut table, desired(5, 4, false)), none());
    stopped_by(&mut table, desired(5, 4, true));
    assert_eq!(table.snapshot()[0].released_generation, Some(Generation(3)));
}

#[test]
fn one_that_was_to_be_stopped_is_not_reported_as_released() {
    let mut table = without_agent();
    assert_eq!(ended(&mut table, 1), None, "no orders were received");

    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    assert_eq!(stopped_by(&mut table, desired(5, 3, false)), ["c".into()]);
    // The stop has not been carried out when the group is released.
    stopped_by(&mut table, desired(5, 3, true));
    assert_eq!(ended(&mut table, 137), None);

    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    table.apply(registered("p", "c", 1), UnixNanos(30));
    assert_eq!(ended(&mut table, 1), None, "it has an agent after all");
}

#[test]
fn an_unknown_exit_is_not_reported_as_a_failure() {
    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    // containerd was away, and shows only what lives.
    let input = Input::Synchronized {
        pods: vec![(sandbox("p"), pod("p"))],
        containers: Vec::new(),
    };
    let effects = table.apply(input, UnixNanos(30));
    assert_eq!(phases(&effects), [Phase::Lost(Exit::UNKNOWN)]);
    assert_eq!(effects.reports[0].released_generation, None);
    assert_eq!(ended(&mut table, 1), Some(2));
}

#[test]
fn the_next_container_does_not_hide_the_failure_of_the_one_before() {
    let mut table = without_agent();
    stopped_by(&mut table, desired(5, 2, true));
    let mark = table.mark();
    let effects = table.apply(
        listed(mark, &["p"], &[("c", Some((exit(1), 25))), ("d", None)]),
        UnixNanos(30),
    );
    assert_eq!(phases(&effects), [Phase::Lost(exit(1))]);
    assert_eq!(effects.reports[0].released_generation, Some(Generation(2)));
}

/// CRI shows it in place of NRI, just before it lists everything.
fn list(table: &mut Table, id: &str, without_agent: bool, before: Option<(&str, i32)>) -> Effects {
    let mut effects = Effects::default();
    let mark = table.mark();
    if without_agent {
        let found = Input::WithoutAgents(vec![present("p", id, true)]);
        effects = table.apply(found, UnixNanos(10));
    }
    let mut containers = vec![(id, None)];
    containers.extend(before.map(|(id, code)| (id, Some((exit(code), 9)))));
    let input = listed(mark, &["p"], &containers);
    let more = table.apply(input, UnixNanos(10));
    effects.stops.extend(more.stops);
    effects.reports.extend(more.reports);
    effects
}

#[test]
fn without_nri_a_listing_shows_which_containers_have_no_agent() {
    let mut table = Table::new(BASE);
    table.apply(Input::Desired(vec![desired(5, 2, false)]), UnixNanos(5));
    assert_eq!(list(&mut table, "c", true, None).stops, ["c".into()]);
    // An unknown one may have its agent.
    let mut table = Table::new(BASE);
    table.apply(Input::Desired(vec![desired(5, 2, false)]), UnixNanos(5));
    assert_eq!(list(&mut table, "c", false, None).stops, none());
}

#[test]
fn one_that_fails_while_nri_is_away_is_a_failure() {
    let mut table = Table::new(BASE);
    list(&mut table, "c", true, None);
    stopped_by(&mut table, desired(5, 2, true));
    let ended = table
        .apply(exited("c".into(), exit(1), 30), UnixNanos(30))
        .reports;
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].released_generation, Some(Generation(2)));
    // The daemon was away, too: the end of the one before is reported, since no agent will.
    let mut table = Table::new(BASE);
    let found = list(&mut table, "d", true, Some(("c", 1))).reports;
    assert_eq!(found.len(), 1);
    assert!(matches!(found[0].phase, Phase::Lost(_)));
}

#[test]
fn one_whose_agent_has_reported_is_not_without_one_whatever_cri_shows() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    table.apply(registered("p", "c", 1), UnixNanos(1));
    list(&mut table, "c", true, None);
    assert_eq!(stopped_by(&mut table, desired(5, 2, false)), none());
}
