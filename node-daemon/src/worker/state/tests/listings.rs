//! What containerd's listings show of containers and pods.

use super::*;

#[test]
fn a_listing_finds_what_ended_unseen() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let mark = table.mark();
    let effects = table.apply(
        listed(mark, &["p"], &[("c", Some((exit(137), 55)))]),
        UnixNanos(60),
    );
    assert_eq!(phases(&effects), [Phase::Lost(exit(137))]);

    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    let mark = table.mark();
    let effects = table.apply(listed(mark, &["p"], &[]), UnixNanos(60));
    assert_eq!(phases(&effects), [Phase::Lost(Exit::UNKNOWN)]);
    assert!(!effects.reports[0].detail.is_empty());
}

#[test]
fn a_listing_does_not_cover_what_appeared_after_it_began() {
    let mut table = Table::new(BASE);
    let mark = table.mark();
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    table.apply(created("p", "c"), UnixNanos(0));
    table.apply(registered("p", "c", 1), UnixNanos(0));
    table.apply(state("c", 1, agent(AgentPhase::Running, 1, 1)), UnixNanos(0));
    assert_eq!(
        table.apply(listed(mark, &[], &[]), UnixNanos(0)),
        Effects::default()
    );
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn a_container_in_creation_may_be_missing_from_any_listing() {
    let mut table = Table::new(BASE);
    table.apply(Input::PodStarted(sandbox("p"), pod("p")), UnixNanos(0));
    table.apply(created("p", "c"), UnixNanos(0));
    let mark = table.mark();
    assert_eq!(
        table.apply(listed(mark, &["p"], &[]), UnixNanos(0)),
        Effects::default()
    );
    // NRI reports it if the creation fails.
    assert_eq!(
        table.apply(Input::Removed("c".into()), UnixNanos(0)).dropped,
        ["c".into()]
    );
    assert!(table.snapshot().is_empty());
}

#[test]
fn pods_go_with_their_last_sandbox() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(Input::PodStarted("second".into(), pod("p")), UnixNanos(0));
    assert_eq!(
        table.apply(Input::PodRemoved(sandbox("p"), "p".into()), UnixNanos(0)),
        Effects::default()
    );
    let effects = table.apply(Input::PodRemoved("second".into(), "p".into()), UnixNanos(0));
    assert_eq!(effects.dropped, ["c".into()]);
    assert_eq!(effects.pods_gone, ["p".into()]);
    assert!(table.snapshot().is_empty() && table.workers.is_empty() && table.pods.is_empty());
}

#[test]
fn synchronizing_is_complete() {
    let mut table = with_worker(agent(AgentPhase::Running, 2, 1));
    table.apply(registered("unknown", "x", 7), UnixNanos(0));
    let effects = table.apply(
        Input::Synchronized {
            pods: vec![(sandbox("q"), pod("q"))],
            containers: vec![present("q", "d", false)],
        },
        UnixNanos(0),
    );
    assert_eq!(effects.pods_gone, ["p".into()]);
    assert_eq!(effects.dropped, ["c".into(), "x".into()]);
    assert_eq!(table.workers.keys().cloned().collect::<Vec<_>>(), ["d".into()]);
}

#[test]
fn a_container_that_was_replaced_before_this_daemon_knew_of_it_is_not_reported() {
    let mut table = Table::new(BASE);
    let dead = ("old", Some((exit(128), 40)));
    let seen = table.apply(listed(0, &["p"], &[dead, ("new", None)]), UnixNanos(50));
    assert_eq!(phases(&seen), []);
    table.apply(registered("p", "new", 1), UnixNanos(60));
    let spoke = table.apply(state("new", 1, agent(AgentPhase::Running, 0, 1)), UnixNanos(60));
    assert_eq!(phases(&spoke), [RUNNING]);
    let mark = table.mark();
    let again = table.apply(listed(mark, &["p"], &[dead, ("new", None)]), UnixNanos(70));
    assert_eq!(phases(&again), []);

    // No container has replaced it yet.
    let mut table = Table::new(BASE);
    let alone = table.apply(listed(0, &["p"], &[dead]), UnixNanos(50));
    assert_eq!(phases(&alone), [Phase::Lost(exit(128))]);
    let mark = table.mark();
    let replaced = table.apply(listed(mark, &["p"], &[dead, ("new", None)]), UnixNanos(60));
    assert_eq!(phases(&replaced), []);

    // Its agent had reported.
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let ended = [("c", Some((exit(137), 40))), ("new", None)];
    let mark = table.mark();
    let found = table.apply(listed(mark, &["p"], &ended), UnixNanos(50));
    assert_eq!(phases(&found), [Phase::Lost(exit(137))]);
    assert_eq!(found.reports[0].generation, Generation(1));
}

#[test]
fn the_exit_that_is_known_later_replaces_the_unknown_one() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    // containerd was restarted: NRI no longer names the container that has ended meanwhile.
    let gone = Input::Synchronized {
        pods: vec![(sandbox("p"), pod("p"))],
        containers: vec![],
    };
    let first = table.apply(gone.clone(), UnixNanos(50));
    assert_eq!(phases(&first), [Phase::Lost(Exit::UNKNOWN)]);
    let mark = table.mark();
    let second = table.apply(
        listed(mark, &["p"], &[("c", Some((exit(42), 40)))]),
        UnixNanos(60),
    );
    assert_eq!(phases(&second), [Phase::Lost(exit(42))]);
    assert_eq!(
        (second.reports[0].since, second.reports[0].detail.as_str()),
        (UnixNanos(40), "")
    );
    assert!(second.reports[0].revision > first.reports[0].revision);
    // From now on it is known.
    for later in [gone, exited("c".into(), exit(3), 70), Input::Removed("c".into())] {
        assert_eq!(phases(&table.apply(later, UnixNanos(80))), []);
    }
}
