//! Orders of leaders, and which leader is obeyed.

use super::*;

/// An order of this epoch for the group, refused for a higher one.
fn stale(epoch: u64, highest: u64) -> StaleOrder {
    StaleOrder {
        group: "g".into(),
        epoch: Epoch(epoch),
        highest: Epoch(highest),
    }
}

#[test]
fn targets_go_out_once_and_again_on_a_new_link() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let effects = table.apply(Input::Desired(vec![desired(5, 2, false)]), UnixNanos(0));
    let (id, link, target) = &effects.targets[0];
    assert_eq!(
        (id, *link, target.generation, target.release),
        (&"c".into(), LinkId(1), Generation(2), false)
    );
    assert!(
        table
            .apply(Input::Desired(vec![desired(5, 2, false)]), UnixNanos(0))
            .targets
            .is_empty()
    );
    assert_eq!(
        table
            .apply(Input::Desired(vec![desired(5, 2, true)]), UnixNanos(0))
            .targets
            .len(),
        1
    );
    let again = table.apply(registered("p", "c", 2), UnixNanos(0)).targets;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].1, LinkId(2));
}

#[test]
fn a_former_leader_is_not_obeyed_and_learns_of_the_newer_one() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 2, false)]), UnixNanos(0));
    let before = table.snapshot()[0].revision;
    let effects = table.apply(Input::Desired(vec![desired(8, 3, true)]), UnixNanos(0));
    assert!(effects.targets.is_empty());
    assert_eq!(effects.stale, [stale(8, 9)]);
    assert_eq!(effects.reports[0].epoch, Epoch(9));
    assert!(effects.reports[0].revision > before);
    assert_eq!(table.groups[&"g".into()].generation, Generation(2));
}

#[test]
fn a_snapshot_carries_the_highest_epoch() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 1, true)]), UnixNanos(0));
    assert_eq!(table.snapshot()[0].epoch, Epoch(9));
}

#[test]
fn forgetting_a_group_affects_no_worker() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    table.apply(Input::Desired(vec![desired(9, 1, true)]), UnixNanos(0));
    table.apply(Input::Forget("g".into(), Epoch(8)), UnixNanos(0));
    assert!(!table.groups.is_empty(), "from a former leader");
    assert_eq!(
        table.apply(Input::Forget("g".into(), Epoch(9)), UnixNanos(0)),
        Effects::default()
    );
    assert!(table.groups.is_empty());
    assert_eq!(table.snapshot()[0].phase, RUNNING);
}

#[test]
fn epochs_from_agents_are_ignored() {
    let of = |epoch, revision| AgentState {
        epoch: Epoch(epoch),
        ..agent(AgentPhase::Running, 1, revision)
    };
    let epochs =
        |effects: Effects| -> Vec<u64> { effects.reports.iter().map(|state| state.epoch.0).collect() };
    // Neither in its first State, nor later, nor on another connection.
    let mut table = with_worker(of(u64::MAX, 1));
    assert_eq!(table.snapshot()[0].epoch, Epoch(0));
    table.apply(Input::Desired(vec![desired(9, 1, true)]), UnixNanos(0));
    assert_eq!(table.snapshot()[0].epoch, Epoch(9));
    table.apply(registered("p", "c", 2), UnixNanos(0));
    assert_eq!(
        epochs(table.apply(state("c", 2, of(u64::MAX, 2)), UnixNanos(0))),
        [9]
    );
    table.apply(Input::LinkDown("c".into(), LinkId(2)), UnixNanos(0));
    assert_eq!(table.snapshot()[0].epoch, Epoch(9));
    // Nor does it keep any leader from being obeyed.
    assert_eq!(
        table
            .apply(Input::Desired(vec![desired(10, 2, true)]), UnixNanos(0))
            .stale,
        []
    );
}

#[test]
fn a_daemon_obeys_no_leader_older_than_one_that_welcomed_its_node() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    // As the daemon reads it at its start, before any pod is known.
    table.apply(Input::Welcomed(Epoch(9)), UnixNanos(0));
    assert_eq!(table.snapshot()[0].epoch, Epoch(9));
    let effects = table.apply(Input::Desired(vec![desired(8, 3, true)]), UnixNanos(0));
    assert_eq!((effects.targets, effects.stale), (vec![], vec![stale(8, 9)]));
    // The sender learns of the other leader.
    assert_eq!(effects.reports[0].epoch, Epoch(9));
    assert!(table.groups.is_empty());
    // A lower epoch that comes late changes nothing.
    table.apply(Input::Welcomed(Epoch(8)), UnixNanos(0));
    assert_eq!(
        table
            .apply(Input::Desired(vec![desired(8, 3, true)]), UnixNanos(0))
            .targets,
        []
    );
    assert_eq!(
        table
            .apply(Input::Desired(vec![desired(9, 3, true)]), UnixNanos(0))
            .targets
            .len(),
        1
    );
    table.apply(Input::Welcomed(Epoch(11)), UnixNanos(0));
    table.apply(Input::Forget("g".into(), Epoch(10)), UnixNanos(0));
    assert!(!table.groups.is_empty(), "from a former leader");
}

#[test]
fn a_pod_of_another_namespace_gets_no_orders_of_the_jobset_that_its_label_names() {
    let mut table = with_worker(agent(AgentPhase::Running, 1, 1));
    let stranger = Pod {
        namespace: "other".into(),
        ..pod("q")
    };
    table.apply(Input::PodStarted(sandbox("q"), stranger), UnixNanos(10));
    table.apply(created("q", "d"), UnixNanos(10));
    table.apply(registered("q", "d", 2), UnixNanos(10));
    table.apply(state("d", 2, agent(AgentPhase::Fresh, 0, 1)), UnixNanos(10));
    let mut order = desired(9, 2, true);
    order.fresh = BTreeSet::from([Incarnation {
        pod: "q".into(),
        container: "d".into(),
    }]);
    let targets =
        |effects: Effects| -> Vec<ContainerId> { effects.targets.into_iter().map(|(id, _, _)| id).collect() };
    assert_eq!(
        targets(table.apply(Input::Desired(vec![order.clone()]), UnixNanos(20))),
        ["c".into()]
    );
    // Nor when the order comes again, nor when the pod is listed again; and its reports carry
    // nothing of the leader.
    assert_eq!(
        table.apply(registered("q", "d", 3), UnixNanos(30)),
        Effects::default()
    );
    let epochs: Vec<Epoch> = table.snapshot().iter().map(|state| state.epoch).collect();
    assert_eq!(epochs.len(), 2);
    // An older control plane does not name the JobSet's namespace.
    order.namespace = None;
    order.generation = Generation(3);
    assert_eq!(
        targets(table.apply(Input::Desired(vec![order]), UnixNanos(40))),
        ["c".into(), "d".into()]
    );
}
