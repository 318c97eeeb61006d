//! Steps that take too long, and delays: `inplace-timeout`, recreations, and back-off.

use super::nodes::{CRASHED, Nodes};
use super::world::World;
use crate::restart::{Announcement, Durable, DurablePhase, Generation, GroupPhase, Phase, RestartLevel};

/// The status once the reconciler has taken this generation for a recreation of its own.
fn recreating(before: &Durable, generation: u64, counted_restarts: u32) -> Durable {
    let mut theirs = before.clone();
    theirs.generation = Generation(generation);
    theirs.counted_restarts = counted_restarts;
    theirs.started.clear();
    theirs.phase = DurablePhase::Recreating;
    theirs
}

#[test]
fn a_worker_out_of_sight_holds_the_barrier_until_the_time_out_then_jobs_are_recreated() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Unlinked);
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.tick(60_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.recreations, 1);
    assert_eq!(
        world.observed.durable.counted_restarts, 1,
        "the fall back is not counted again"
    );

    world.pod(0);
    world.pod(1);
    world.settle();
    assert!(
        world.phases().iter().all(|phase| *phase == Phase::Parked),
        "new workers wait while an old pod lives"
    );
    world.observed.old_pods = 0;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Restarted {
            level: RestartLevel::Recreate,
            ..
        })
    ));
}

#[test]
fn time_without_the_api_server_does_not_count() {
    let mut world = World::running(2, 3);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    world.tick(600_000);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Parked);
    world.confirm = true;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.recreations, 0);
}

#[test]
fn the_reconciler_may_take_the_generation_for_a_recreation() {
    let mut world = World::running(2, 3);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    let theirs = recreating(&world.observed.durable, 1, 1);
    world.confirm_write(theirs);
    world.confirm = true;
    world.settle();
    assert_eq!(
        world.coordinator.phase(),
        GroupPhase::Recreating,
        "the old pods are still there"
    );
    world.observed.old_pods = 0;
    world.pod(0);
    world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(
        (world.observed.durable.counted_restarts, world.recreations),
        (1, 1)
    );
}

#[test]
fn a_failure_that_the_reconciler_counts_stays_counted_if_this_leader_recreates_the_jobs_too() {
    let mut world = World::running(2, 3);
    world.fail(0);
    world.step();
    world.confirm = false;
    world.tick(600_000);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    // A Job has failed meanwhile, and the reconciler was faster.
    let before = &world.observed.durable;
    assert_eq!((before.generation, before.counted_restarts), (Generation(1), 1));
    let theirs = recreating(before, 2, 2);
    world.confirm_write(theirs);
    world.confirm = true;
    world.settle();
    world.observed.old_pods = 0;
    world.pod(0);
    world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    let durable = &world.observed.durable;
    assert_eq!((durable.generation, durable.counted_restarts), (Generation(2), 2));
    assert_eq!((world.recreations, world.restarts()), (1, 1));
}

#[test]
fn a_recreation_is_followed_if_containers_have_started_at_its_generation() {
    let mut nodes = Nodes::running(2, 9);
    nodes.confirm = false;
    nodes.end(0, CRASHED);
    nodes.look();
    nodes.daemon(0);
    nodes.daemon(1);
    nodes.kubelet(1);
    // The leader could not write that restart. The kubelet makes the other container wait.
    nodes.new_leader(2);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Releasing);
    let theirs = recreating(&nodes.observed.durable, 1, 1);
    nodes.confirm_write(theirs);
    nodes.confirm = true;
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Recreating);
    nodes.observed.old_pods = 0;
    nodes.pod(0);
    nodes.pod(1);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(nodes.running_at(Generation(1)), 2);
    assert_eq!((nodes.observed.durable.counted_restarts, nodes.stops), (1, 1));
}

#[test]
fn a_worker_that_fails_twice_as_soon_as_it_is_released_is_made_to_wait() {
    let mut world = World::running(2, 10);
    for _ in 0..2 {
        world.fail(0);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    }
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Parked);
    let out = world.step();
    assert!(out.wake_at.is_some());
    world.tick(1000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.observed.durable.counted_restarts, 3);
}

#[test]
fn a_worker_that_parked_in_time_may_go_out_of_sight_while_the_release_waits() {
    let mut world = World::running(2, 3);
    world.fail(0);
    let out = world.coordinator.step(&world.observed, world.now);
    world.desired = out.desired;
    world.obey();
    // The API server is away longer than the time-out: nothing becomes durable.
    world.coordinator.step(&world.observed, world.now);
    assert_eq!(world.coordinator.phase(), GroupPhase::Parked);
    world.tick(120_000);
    world.set_phase(1, Phase::Unlinked);
    world.coordinator.step(&world.observed, world.now);
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.set_phase(1, Phase::Parked);
    world.settle();
    assert_eq!(
        (world.coordinator.phase(), world.recreations),
        (GroupPhase::InSync, 0)
    );
}
