//! Workers that run but make no progress.

use super::world::{World, id};
use crate::restart::{Generation, GroupPhase, Heartbeat, Phase, Reason};

fn reason(world: &World) -> Option<Reason> {
    world.observed.durable.cause.as_ref().map(|cause| cause.reason)
}

fn counted(world: &World) -> u32 {
    world.observed.durable.counted_restarts
}

#[test]
fn a_missed_heartbeat_restarts_the_group_once_and_counts() {
    let mut world = World::running(3, 5);
    world.beat(1, Heartbeat::Missed);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((world.restarts(), counted(&world)), (1, 1));
    assert_eq!(world.coordinator.generation(), Generation(1));
    let cause = world.observed.durable.cause.clone().unwrap();
    assert_eq!(
        (cause.reason, cause.identity),
        (Reason::HeartbeatMissed, Some(id(1)))
    );
    assert_eq!(cause.node, "node-1");
    assert_eq!(cause.exit, None);
}

#[test]
fn all_workers_that_hang_together_are_one_restart() {
    let mut world = World::running(3, 5);
    for index in 0..3 {
        world.beat(index, Heartbeat::Missed);
    }
    world.settle();
    assert_eq!((world.restarts(), counted(&world)), (1, 1));
}

#[test]
fn a_heartbeat_that_is_back_before_the_decision_was_not_missed() {
    let mut world = World::running(2, 5);
    world.beat(0, Heartbeat::Missed);
    world.beat(0, Heartbeat::Well);
    world.settle();
    assert_eq!((world.restarts(), counted(&world)), (0, 0));
}

#[test]
fn a_worker_out_of_sight_is_not_judged_by_the_heartbeat_that_it_missed() {
    let mut world = World::running(2, 5);
    world.beat(0, Heartbeat::Missed);
    let (incarnation, report) = world.current(0);
    world.report(&incarnation, 0, Phase::Unlinked, report.generation);
    world.settle();
    assert_eq!(world.restarts(), 0);
}

#[test]
fn a_new_leader_acts_on_a_heartbeat_missed_before_its_time() {
    let mut world = World::running(2, 5);
    world.beat(1, Heartbeat::Missed);
    world.new_leader(2);
    world.settle();
    assert_eq!((world.restarts(), counted(&world)), (1, 1));
    assert_eq!(reason(&world), Some(Reason::HeartbeatMissed));
}

#[test]
fn a_heartbeat_missed_when_no_restart_is_left_fails_the_group() {
    let mut world = World::running(2, 0);
    world.beat(1, Heartbeat::Missed);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    assert_eq!(reason(&world), Some(Reason::HeartbeatMissed));
}

#[test]
fn a_worker_that_is_not_up_in_time_restarts_the_group_and_counts() {
    let mut world = World::running(2, 5);
    world.beat(0, Heartbeat::Awaited);
    world.tick(3_600_000);
    world.settle();
    assert_eq!(world.restarts(), 0, "its agent has not reported it as late");
    world.beat(0, Heartbeat::Overdue);
    world.settle();
    assert_eq!((world.restarts(), counted(&world)), (1, 1));
    let cause = world.observed.durable.cause.clone().unwrap();
    assert_eq!(
        (cause.reason, cause.identity),
        (Reason::ReadyTimeout, Some(id(0)))
    );
}

#[test]
fn a_late_worker_that_is_up_before_the_decision_is_left_unchanged() {
    let mut world = World::running(2, 5);
    world.beat(0, Heartbeat::Overdue);
    world.beat(0, Heartbeat::Well);
    world.settle();
    assert_eq!(world.restarts(), 0);
}

#[test]
fn no_worker_is_judged_while_out_of_sight() {
    let mut world = World::running(2, 5);
    world.beat(0, Heartbeat::Overdue);
    let (incarnation, report) = world.current(0);
    world.report(&incarnation, 0, Phase::Unlinked, report.generation);
    world.settle();
    assert_eq!(world.restarts(), 0);
}

#[test]
fn a_worker_that_was_not_started_is_awaited() {
    let mut world = World::created(2, 5);
    world.pod(0);
    world.step();
    world.tick(3_600_000);
    world.step();
    assert_eq!(
        world.restarts(),
        0,
        "one has no pod yet, the other has not heard of its release"
    );
    world.pod(1);
    world.settle();
    assert_eq!(world.phases(), [Phase::Running, Phase::Running]);
    assert_eq!(world.restarts(), 0);
}
