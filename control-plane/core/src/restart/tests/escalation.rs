//! A worker that fails too often loses its pod, in the restart that it causes.

use super::world::{World, id};
use crate::restart::{Announcement, Condemned, EscalateAfter, Generation, GroupPhase, Phase};

fn world(failures: u32, max_restarts: u32) -> World {
    let mut world = World::running(3, max_restarts);
    world.observed.policy.escalate_after = Some(EscalateAfter {
        failures,
        within_ms: 600_000,
    });
    world
}

/// Fails the worker this many times, a minute apart, and returns the pods to delete then.
fn fail(world: &mut World, index: u32, times: u32) -> Vec<Condemned> {
    for _ in 0..times {
        world.tick(60_000);
        world.fail(index);
        world.settle();
    }
    world.step().condemned
}

fn said(world: &World) -> usize {
    let escalated = |said: &&Announcement| matches!(said, Announcement::Escalated { .. });
    world.announcements.iter().filter(escalated).count()
}

#[test]
fn the_third_failure_takes_the_pod_and_counts_once() {
    let mut world = world(3, 9);
    assert_eq!(fail(&mut world, 1, 2), []);
    let pod = world.observed.workers[&id(1)].pods[0].clone();
    let condemned = fail(&mut world, 1, 1);
    let expected = Condemned {
        identity: id(1),
        pod_uid: pod.uid,
        pod: pod.name,
        node: "node-1".to_owned(),
    };
    assert_eq!(condemned, [expected]);
    assert_eq!(
        world.coordinator.phase(),
        GroupPhase::Stopping,
        "it is not released in its old pod"
    );
    world.lose_pod(1);
    world.settle();
    assert_eq!(world.step().condemned, []);
    let replacement = world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.starts[&replacement], 1);
    assert_eq!(world.observed.durable.counted_restarts, 3);
    assert_eq!(said(&world), 1);
    assert_eq!(fail(&mut world, 1, 2), [], "the new pod starts a new count");
}

#[test]
fn failures_of_others_and_failures_long_ago_do_not_add_up() {
    let mut world = world(3, 99);
    for _ in 0..5 {
        assert_eq!(fail(&mut world, 0, 1), []);
        assert_eq!(fail(&mut world, 1, 1), []);
        world.tick(600_000);
    }
    assert_eq!(fail(&mut world, 1, 1), []);
}

#[test]
fn a_lost_pod_has_moved_by_itself() {
    let mut world = world(2, 9);
    assert_eq!(fail(&mut world, 1, 1), []);
    world.lose_pod(1);
    world.settle();
    world.pod(1);
    world.settle();
    assert_eq!(fail(&mut world, 1, 1), []);
    assert_eq!(fail(&mut world, 1, 1).len(), 1);
}

#[test]
fn no_worker_loses_its_pod_without_the_annotation() {
    let mut world = World::running(3, 99);
    assert_eq!(fail(&mut world, 1, 20), []);
}

#[test]
fn if_the_restarts_are_used_up_the_jobset_fails_and_the_pod_stays() {
    let mut world = world(3, 2);
    assert_eq!(fail(&mut world, 1, 3), []);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
}

#[test]
fn a_pod_that_cannot_be_deleted_is_left_by_the_recreation() {
    let mut world = world(1, 9);
    assert_eq!(fail(&mut world, 1, 1).len(), 1);
    assert!(world.phases().iter().all(|phase| *phase == Phase::Parked));
    world.tick(60_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.step().condemned, []);
    assert_eq!(world.coordinator.generation(), Generation(2));
}
