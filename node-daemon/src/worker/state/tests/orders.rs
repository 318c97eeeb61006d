//! What leaders want of workers, and which of them is obeyed.

use super::*;

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
