//! A new leader restarts no healthy worker, and finishes a restart that was begun.

use super::world::{World, id};
use crate::restart::{Durable, DurablePhase, Epoch, Generation, GroupPhase, Phase};

#[test]
fn a_new_leader_of_a_healthy_group_changes_and_writes_nothing() {
    let mut world = World::running(4, 3);
    let (writes, starts) = (world.writes, world.starts.clone());
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((world.writes, world.starts), (writes, starts));
}

#[test]
fn it_waits_for_the_daemons_of_the_group() {
    let mut world = World::running(4, 3);
    world.observed.heard_nodes.remove("node-1");
    world.new_leader(2);
    assert!(world.step().desired.is_none());
    assert_eq!(world.coordinator.phase(), GroupPhase::Recovering);
    world.observed.heard_nodes.insert("node-1".into());
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn it_waits_for_the_agents_of_a_daemon_that_has_just_started() {
    let mut world = World::running(3, 3);
    world.observed.durable.phase = DurablePhase::Stopping;
    let reports = world.observed.reports.clone();
    for index in 0..3 {
        world.set_phase(index, Phase::Unlinked);
    }
    world.new_leader(2);
    assert!(world.step().desired.is_none());
    world.observed.reports = reports;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(0));
}

#[test]
fn but_not_for_ever() {
    let mut world = World::running(4, 3);
    world.observed.heard_nodes.clear();
    world.new_leader(2);
    world.step();
    world.tick(15_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.restarts(), 0);
}

#[test]
fn a_failure_meanwhile_is_found_and_counted_once() {
    let mut world = World::running(4, 3);
    world.fail(1);
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_replaced_worker_that_waits_at_the_generation_that_all_have_run_is_found() {
    let mut world = World::running(4, 3);
    world.fail(0);
    world.settle();
    world.lose_pod(1);
    let incarnation = world.pod(1);
    // Its daemon knows what the former leader said of the group.
    world.report(&incarnation, 1, Phase::Parked, Generation(1));
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.observed.durable.counted_restarts, 2);
    let starts: Vec<u32> = (0..4)
        .map(|index| world.starts[&world.current(index).0])
        .collect();
    assert_eq!(starts, [3, 1, 3, 3]);
}

#[test]
fn a_worker_that_was_out_of_sight_since_its_release_is_released_by_the_next_leader() {
    let mut world = World::running(4, 3);
    world.fail(0);
    while world.coordinator.phase() != GroupPhase::Releasing {
        world.step();
        if world.coordinator.phase() != GroupPhase::Releasing {
            world.obey();
        }
    }
    // All but one hear of it; its stream breaks.
    let (incarnation, parked) = world.current(1);
    world.set_phase(1, Phase::Unlinked);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.observed.durable.phase, DurablePhase::InSync);
    world.new_leader(2);
    world.report(&incarnation, 1, parked.phase, parked.generation);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    let starts: Vec<u32> = (0..4)
        .map(|index| world.starts[&world.current(index).0])
        .collect();
    assert_eq!(starts, [2; 4]);
    assert_eq!(world.observed.durable.released, Generation(1));
}

#[test]
fn a_replaced_worker_of_a_started_stage_is_found() {
    let mut world = World::running(4, 3);
    world.lose_pod(1);
    world.pod(1);
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn a_worker_lost_meanwhile_and_not_yet_replaced_is_found() {
    let mut world = World::running(4, 3);
    world.lose_pod(1);
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recovering);
    world.tick(15_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn a_takeover_at_any_step_of_a_restart_ends_in_the_same_state() {
    for at in 0..8 {
        for confirm in [false, true] {
            let mut world = World::running(3, 3);
            world.fail(0);
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
            assert_eq!(world.coordinator.generation(), Generation(1), "takeover at {at}");
            assert_eq!(world.observed.durable.counted_restarts, 1, "takeover at {at}");
            assert!(
                world.phases().iter().all(|phase| *phase == Phase::Running),
                "takeover at {at}"
            );
            assert!(
                world.starts.values().all(|starts| *starts == 2),
                "takeover at {at}: {:?}",
                world.starts
            );
        }
    }
}

#[test]
fn a_barrier_opens_under_the_epoch_of_the_leader_that_opens_it() {
    let mut world = World::running(3, 3);
    world.fail(0);
    world.step();
    world.obey();
    let durable = &world.observed.durable;
    assert_eq!((durable.generation, durable.epoch), (Generation(1), Epoch(1)));
    world.new_leader(2);
    world.confirm = false;
    for _ in 0..3 {
        world.step();
        world.obey();
    }
    assert_eq!(world.coordinator.phase(), GroupPhase::Parked);
    assert!(
        world.starts.values().all(|starts| *starts == 1),
        "{:?}",
        world.starts
    );
    world.confirm = true;
    world.settle();
    let durable = &world.observed.durable;
    assert_eq!((durable.generation, durable.epoch), (Generation(1), Epoch(2)));
    assert!(
        world.starts.values().all(|starts| *starts == 2),
        "{:?}",
        world.starts
    );
}

#[test]
fn without_a_barrier_workers_start_whichever_leader_has_written() {
    let mut world = World::created(2, 3);
    world.pod(0);
    world.settle();
    world.new_leader(2);
    world.confirm = false;
    world.pod(1);
    for _ in 0..3 {
        world.step();
        world.obey();
    }
    assert_eq!(world.phases(), [Phase::Running, Phase::Running]);
    assert!(
        world.starts.values().all(|starts| *starts == 1),
        "{:?}",
        world.starts
    );
}

#[test]
fn a_deposed_leader_gives_no_more_orders() {
    let mut world = World::running(3, 3);
    world.observed.durable.epoch = Epoch(9);
    world.fail(0);
    let out = world.step();
    assert_eq!((out.desired, out.status), (None, None));
}

#[test]
fn the_last_write_of_a_former_leader_goes_through_the_barrier() {
    let mut world = World::running(3, 3);
    world.new_leader(2);
    world.settle();
    let mut late = world.observed.durable.clone();
    late.generation = Generation(1);
    late.counted_restarts = 1;
    late.phase = DurablePhase::Stopping;
    world.confirm_write(late);
    world.step();
    assert!(
        !world.desired.as_ref().unwrap().release,
        "no worker starts before all have stopped"
    );
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert!(world.starts.values().all(|starts| *starts == 2));
    assert_eq!(world.recreations, 0);
}

#[test]
fn a_container_that_ended_meanwhile_is_found_before_the_next_one_comes() {
    let mut world = World::running(2, 3);
    let (incarnation, report) = world.current(1);
    let killed = crate::restart::Exit { code: 137, signal: 9 };
    world.report(&incarnation, 1, Phase::Lost(killed), report.generation);
    world.new_leader(2);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.container(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn jobs_that_are_recreated_at_the_generation_of_a_suspension_are_counted() {
    let mut world = World::running(2, 9);
    world.confirm = false;
    world.observed.suspended = true;
    world.step();
    assert_eq!(world.coordinator.generation(), Generation(1));
    // The reconciler was faster and handled a failed Job.
    let made_anew = Durable {
        generation: Generation(1),
        counted_restarts: 1,
        phase: DurablePhase::Recreating,
        ..world.observed.durable.clone()
    };
    world.observed.durable = made_anew;
    world.confirm = true;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Suspended);
    let durable = &world.observed.durable;
    assert_eq!((durable.generation, durable.counted_restarts), (Generation(1), 1));
}

#[test]
fn an_index_that_has_failed_for_good_is_no_loss_to_it() {
    let mut world = World::running(3, 3);
    let starts = world.starts.clone();
    world.lose_pod(1);
    world.observed.workers.get_mut(&id(1)).unwrap().completed = true;
    world.new_leader(2);
    world.tick(20_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((world.restarts(), &world.starts), (0, &starts));
}

#[test]
fn a_restart_that_it_finds_under_way_ends_with_those_that_took_part() {
    for takes_over_at in 0..6 {
        let mut world = World::created(3, 5);
        world.observed.workers.get_mut(&id(2)).unwrap().stage = "elsewhere".into();
        world.pod(0);
        world.pod(1);
        world.settle();
        world.fail(0);
        for _ in 0..takes_over_at {
            world.step();
            world.obey();
        }
        let durable = world.observed.durable.clone();
        world.new_leader(2);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        let after = &world.observed.durable;
        assert_eq!(
            (
                after.phase,
                after.generation,
                after.released,
                after.counted_restarts
            ),
            (DurablePhase::InSync, Generation(1), Generation(1), 1),
            "taken over at {takes_over_at}, with {durable:?}"
        );
        world.pod(2);
        world.settle();
        assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
        assert_eq!(world.observed.durable.counted_restarts, 1);
    }
}
