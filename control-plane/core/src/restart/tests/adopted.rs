//! What a new leader learns from workers and not from the status: generations that their leader
//! could not write, and releases.

use super::world::{World, id};
use crate::restart::{
    Durable, DurablePhase, Epoch, Exit, Generation, GroupPhase, Phase, Reason, RestartLevel,
};

/// Worker 0 exits by itself. All workers hear of the counted restart for that, but its leader dies
/// before it can write to the status.
fn restart_that_only_workers_know(world: &mut World) {
    world.confirm = false;
    world.set_phase(0, Phase::Exited(Exit { code: 1, signal: 0 }));
    world.step();
    world.obey();
    for report in world.observed.reports.values_mut() {
        report.counted_restarts = 1;
    }
    world.new_leader(2);
    world.confirm = true;
}

/// Worker 0 exits by itself, and the group is left to itself until it is in sync or has failed.
fn exits_again(world: &mut World) {
    world.set_phase(0, Phase::Exited(Exit { code: 1, signal: 0 }));
    world.settle();
    if world.observed.old_pods > 0 {
        world.observed.old_pods = 0;
        world.pod(0);
        world.pod(1);
        world.tick(60_000);
        world.settle();
    }
}

#[test]
fn it_has_the_level_of_a_restart_in_place_and_leaves_the_last_resort_to_every_later_leader() {
    for changes_leader in [false, true] {
        let mut world = World::running(2, 1);
        restart_that_only_workers_know(&mut world);
        world.settle();
        let durable = &world.observed.durable;
        assert_eq!((durable.generation, durable.counted_restarts), (Generation(1), 1));
        assert_eq!(durable.level, Some(RestartLevel::Process));
        if changes_leader {
            world.new_leader(3);
            world.settle();
        }
        exits_again(&mut world);
        assert_eq!(
            (world.coordinator.phase(), world.recreations),
            (GroupPhase::InSync, 1)
        );
        let durable = &world.observed.durable;
        assert_eq!(durable.cause.as_ref().unwrap().reason, Reason::LastResort);
        assert_eq!(
            (durable.counted_restarts, durable.level),
            (1, Some(RestartLevel::Recreate))
        );
        exits_again(&mut world);
        assert_eq!(
            (world.coordinator.phase(), world.recreations),
            (GroupPhase::Failed, 1)
        );
    }
}

#[test]
fn a_recreation_stays_one_if_workers_know_a_later_generation() {
    let mut world = World::running(2, 1);
    world.observed.durable = Durable {
        epoch: Epoch(1),
        generation: Generation(1),
        counted_restarts: 1,
        phase: DurablePhase::Recreating,
        level: Some(RestartLevel::Recreate),
        ..Durable::default()
    };
    let (incarnation, _) = world.current(0);
    world.report(&incarnation, 0, Phase::Parked, Generation(2));
    world.new_leader(2);
    world.step();
    let durable = &world.observed.durable;
    assert_eq!(
        (durable.phase, durable.generation),
        (DurablePhase::Recreating, Generation(2))
    );
    assert_eq!(durable.level, Some(RestartLevel::Recreate));
    world.observed.old_pods = 0;
    world.pod(0);
    world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    world.set_phase(0, Phase::Exited(Exit { code: 1, signal: 0 }));
    world.settle();
    assert_eq!(
        world.coordinator.phase(),
        GroupPhase::Failed,
        "new Jobs have no leftovers"
    );
}

/// A new leader of a group whose restart at generation 1 has this phase in the status. One worker
/// is said to run at that generation, one still runs at generation 0, and one waits at the barrier.
fn said_to_be_released(phase: DurablePhase) -> World {
    let mut world = World::running(3, 3);
    let durable = &mut world.observed.durable;
    (durable.generation, durable.phase, durable.counted_restarts) = (Generation(1), phase, 1);
    durable.level = Some(RestartLevel::Process);
    for (index, phase, generation) in [
        (0, Phase::Running, 1),
        (1, Phase::Running, 0),
        (2, Phase::Parked, 1),
    ] {
        let (incarnation, _) = world.current(index);
        world.report(&incarnation, index, phase, Generation(generation));
    }
    world.new_leader(2);
    world
}

#[test]
fn no_node_can_claim_a_release_that_a_worker_in_sight_has_not_stopped_for() {
    let mut world = said_to_be_released(DurablePhase::Stopping);
    let released = world.step().desired.is_some_and(|desired| desired.release);
    assert!(!released, "{}", world.coordinator.phase());
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert_eq!(
        (world.observed.durable.counted_restarts, world.recreations),
        (1, 0)
    );
}

#[test]
fn but_a_release_that_is_over_stops_no_healthy_worker_for_one_that_is_behind() {
    let mut world = said_to_be_released(DurablePhase::InSync);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.starts[&world.current(0).0], 1);
}

#[test]
fn a_restart_whose_leader_died_before_its_write_is_finished_and_made_durable() {
    let mut world = World::running(3, 3);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    // The workers are parked at a generation that no status names.
    world.new_leader(2);
    world.confirm = true;
    world.settle();
    assert_eq!(world.observed.durable.generation, Generation(1));
    assert_eq!(world.observed.durable.epoch, Epoch(2));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn a_recreation_is_followed_if_workers_report_its_generation_first() {
    let mut world = World::running(2, 9);
    world.observed.heard_nodes.remove("node-1");
    let (incarnation, report) = world.current(0);
    world.report(&incarnation, 1, Phase::Parked, Generation(1));
    assert_eq!(report.counted_restarts, 0);
    world.new_leader(2);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recovering);
    assert_eq!(world.coordinator.generation(), Generation(1));
    world.observed.durable = Durable {
        generation: Generation(1),
        counted_restarts: 1,
        phase: DurablePhase::Recreating,
        ..world.observed.durable.clone()
    };
    world.settle();
    let durable = &world.observed.durable;
    assert_eq!((durable.generation, durable.counted_restarts), (Generation(1), 1));
}

#[test]
fn whatever_generation_is_reported_can_become_durable_and_counts_no_more_restarts_than_it_is_ahead() {
    let mut world = World::running(2, 3);
    let (incarnation, mut report) = world.current(0);
    (report.generation, report.counted_restarts) = (Generation(u64::MAX), u32::MAX);
    world.observed.reports.insert(incarnation, report);
    let wanted = world.step().status.unwrap();
    assert_eq!(wanted.generation, Generation::LAST);
    assert!(
        i32::try_from(wanted.counted_restarts).is_ok(),
        "{}",
        wanted.counted_restarts
    );

    let mut world = World::running(2, 3);
    let (incarnation, mut report) = world.current(0);
    (report.generation, report.counted_restarts) = (Generation(2), u32::MAX);
    world.observed.reports.insert(incarnation, report);
    let wanted = world.step().status.unwrap();
    // It reports that it runs at a generation that no worker was allowed to start: all meet at the
    // next one.
    assert_eq!((wanted.generation, wanted.counted_restarts), (Generation(3), 2));
}

#[test]
fn a_container_that_the_kubelet_has_started_proves_no_release_if_others_have_agents() {
    let mut world = World::running(3, 3);
    let changed = world.observed.workers.get_mut(&id(2)).unwrap();
    (changed.level, changed.stays_down) = (RestartLevel::Container, true);
    // The former leader could not write generation 1. Worker 1 has not heard of it.
    for (index, phase, generation) in [
        (0, Phase::Parked, 1),
        (1, Phase::Running, 0),
        (2, Phase::Running, 1),
    ] {
        let (incarnation, mut report) = world.current(index);
        (report.phase, report.generation) = (phase, Generation(generation));
        world.observed.reports.insert(incarnation, report);
    }
    world.new_leader(2);
    let released = world.step().desired.is_some_and(|desired| desired.release);
    assert!(!released, "{}", world.coordinator.phase());
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
}
