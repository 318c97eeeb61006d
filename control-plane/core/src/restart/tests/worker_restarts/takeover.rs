//! Leaders that take over worker restarts.

use super::*;

#[test]
fn a_takeover_at_any_step_ends_in_the_same_state() {
    for at in 0..8 {
        for confirm in [false, true] {
            let mut world = running(3, 9);
            world.fail(1);
            for turn in 0..8 {
                world.confirm = turn != at || confirm;
                world.step();
                if turn == at {
                    world.new_leader(2);
                } else {
                    world.obey();
                }
            }
            world.confirm = true;
            world.settle();
            assert_eq!(world.coordinator.phase(), GroupPhase::InSync, "takeover at {at}");
            assert_eq!(world.observed.durable.counted_restarts, 1, "takeover at {at}");
            assert_eq!(generations(&world), [0, 1, 0], "takeover at {at}");
            assert!(all_run(&world), "takeover at {at}");
            assert!(
                world.observed.durable.worker_restarts.is_empty(),
                "takeover at {at}"
            );
            assert_eq!(starts(&world).iter().sum::<u32>(), 4, "takeover at {at}");
        }
    }
}

#[test]
fn a_new_leader_of_workers_at_several_generations_restarts_no_worker() {
    let mut world = running(3, 9);
    for _ in 0..2 {
        world.tick(10_000);
        world.fail(1);
        world.settle();
    }
    let (before, writes) = (world.starts.clone(), world.writes);
    world.new_leader(2);
    world.settle();
    assert_eq!((&world.starts, world.writes), (&before, writes));
    world.fail(2);
    world.settle();
    assert_eq!(generations(&world), [0, 2, 3]);
    assert_eq!(world.observed.durable.counted_restarts, 3);
}

#[test]
fn the_last_write_of_a_former_leader_is_followed_and_not_counted_again() {
    for same_worker in [false, true] {
        let mut world = running(3, 9);
        world.new_leader(2);
        world.settle();
        world.confirm = false;
        world.fail(1);
        if !same_worker {
            world.fail(2);
        }
        world.step();
        // This leader cannot write its decision: its predecessor was faster.
        let mut late = world.observed.durable.clone();
        late.latest = Generation(1);
        late.counted_restarts = 1;
        late.worker_restarts
            .insert(id(if same_worker { 1 } else { 2 }), Generation(1));
        world.confirm_write(late);
        world.confirm = true;
        world.settle();
        let failures = if same_worker { 1 } else { 2 };
        assert_eq!(world.observed.durable.counted_restarts, failures);
        assert!(all_run(&world));
        assert_eq!(starts(&world).iter().sum::<u32>(), 3 + failures);
    }
}

#[test]
fn a_number_that_a_former_leader_has_given_to_one_is_no_barrier_for_all() {
    let mut world = running(3, 9);
    world.new_leader(2);
    world.settle();
    world.confirm = false;
    world.fail(0);
    world.step();
    let mut late = world.observed.durable.clone();
    (late.latest, late.counted_restarts) = (Generation(1), 1);
    late.worker_restarts.insert(id(1), Generation(1));
    world.confirm_write(late);
    world.confirm = true;
    world.settle();
    assert_eq!(generations(&world), [2, 2, 2]);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn a_new_leader_with_an_old_status_reads_it_again_before_it_takes_one_workers_generation_for_that_of_all() {
    let mut world = running(3, 9);
    let old = world.observed.durable.clone();
    world.fail(1);
    world.settle();
    let newest = std::mem::replace(&mut world.observed.durable, old);
    let starts = world.starts.clone();
    world.new_leader(2);
    world.confirm = false;
    let out = world.step();
    assert!(out.desired.is_none());
    assert!(out.status.is_some(), "the write shows if it is the newest");
    // It is not.
    world.observed.durable = newest;
    world.confirm = true;
    world.settle();
    assert_eq!(world.starts, starts);
    assert_eq!(generations(&world), [0, 1, 0]);
    assert_eq!(world.restarts(), 1);
}

#[test]
fn a_restart_of_all_that_could_not_be_written_is_still_known_for_one() {
    let mut world = running(3, 9);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    world.new_leader(2);
    world.confirm = true;
    world.settle();
    assert_eq!(generations(&world), [1, 1, 1]);
    assert!(all_run(&world));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

/// Its daemon is also new: it learns at once how the former container ended, and hears the present
/// agent later.
#[test]
fn a_new_leader_does_not_take_a_container_that_was_replaced_long_ago_for_a_failure() {
    let mut world = running(3, 9);
    let (before, report) = world.current(1);
    let killed = Exit { code: 137, signal: 9 };
    world.report(&before, 1, Phase::Lost(killed), report.generation);
    world.settle();
    world.container(1);
    world.settle();
    assert!(all_run(&world));
    let (present, report) = world.current(1);
    let starts = world.starts.clone();
    world.observed.reports.remove(&present);
    world.new_leader(2);
    world.settle();
    world.tick(20_000);
    world.settle();
    assert_eq!(
        (world.restarts(), world.observed.durable.counted_restarts),
        (1, 1)
    );
    world.observed.reports.insert(present, report);
    world.settle();
    assert_eq!((&world.starts, world.restarts()), (&starts, 1));
    assert_eq!(generations(&world), [0, 1, 0]);
}

#[test]
fn a_new_leader_counts_a_container_that_was_lost_unseen_once_the_next_one_is_there() {
    let mut world = running(3, 9);
    world.fail(2);
    world.settle();
    let (before, report) = world.current(1);
    let killed = Exit { code: 137, signal: 9 };
    world.report(&before, 1, Phase::Lost(killed), report.generation);
    world.new_leader(2);
    world.settle();
    world.tick(20_000);
    world.settle();
    assert_eq!(world.observed.durable.counted_restarts, 1);
    world.container(1);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 2);
    assert_eq!(generations(&world), [0, 2, 1]);
}
