//! Which workers a restart waits for. The result does not depend on how often the coordinator
//! looks.

use super::world::World;
use crate::restart::{Exit, Generation, GroupPhase, Heartbeat, Phase, StepDelay};

/// The group after a failure, with a durable restart: all workers must stop.
fn stopping(workers: u32) -> World {
    let mut world = World::running(workers, 3);
    world.fail(0);
    world.step();
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world
}

/// The worker reports this; whether that calls for no step.
fn passes(world: &mut World, delay: &mut StepDelay, index: u32, phase: Phase, generation: u64) -> bool {
    let (incarnation, before) = world.current(index);
    world.report(&incarnation, index, phase, Generation(generation));
    let report = &world.observed.reports[&incarnation];
    delay.defers((before.phase, before.generation), report)
}

#[test]
fn only_the_last_worker_to_stop_and_to_start_calls_for_a_step() {
    let mut world = stopping(4);
    let mut delay = world.step().step_delay.unwrap();
    for index in 0..4 {
        for (phase, generation) in [(Phase::Stopping, 0), (Phase::Parked, 1)] {
            let is_last = index == 3 && phase == Phase::Parked;
            let passes = passes(&mut world, &mut delay, index, phase, generation);
            assert_eq!(passes, !is_last, "{index} {phase:?}");
        }
    }
    let mut delay = world.step().step_delay.unwrap();
    assert_eq!(world.coordinator.phase(), GroupPhase::Releasing);
    for index in 0..4 {
        for phase in [Phase::Starting, Phase::Running] {
            let is_last = index == 3 && phase == Phase::Running;
            let passes = passes(&mut world, &mut delay, index, phase, 1);
            assert_eq!(passes, !is_last, "{index} {phase:?}");
        }
    }
    assert_eq!(world.step().step_delay, None);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn a_report_that_the_restart_does_not_wait_for_needs_a_step() {
    let exit = Exit { code: 1, signal: 0 };
    for (phase, generation) in [
        (Phase::Done, 0),
        (Phase::Lost(exit), 0),
        (Phase::Unlinked, 0),
        (Phase::Exited(exit), 0),
        (Phase::Running, 1),
        (Phase::Parked, 0),
        (Phase::Parked, 2),
    ] {
        let mut world = stopping(4);
        let mut delay = world.step().step_delay.unwrap();
        let passes = passes(&mut world, &mut delay, 2, phase, generation);
        assert!(!passes, "{phase:?} {generation}");
    }
}

#[test]
fn a_worker_that_runs_and_is_not_alive_calls_for_a_step() {
    let mut world = stopping(2);
    for index in 0..2 {
        let (incarnation, _) = world.current(index);
        world.report(&incarnation, index, Phase::Parked, Generation(1));
    }
    let mut delay = world.step().step_delay.unwrap();
    let (incarnation, before) = world.current(0);
    world.report(&incarnation, 0, Phase::Running, Generation(1));
    world.beat(0, Heartbeat::Overdue);
    let report = &world.observed.reports[&incarnation];
    assert!(!delay.defers((before.phase, before.generation), report));
}

#[test]
fn no_worker_is_awaited_without_a_restart() {
    let mut world = World::running(3, 3);
    assert_eq!(world.step().step_delay, None);
}

#[test]
fn a_worker_that_was_out_of_sight_needs_a_step() {
    let mut world = stopping(3);
    world.set_phase(1, Phase::Unlinked);
    let mut delay = world.step().step_delay.unwrap();
    assert!(!passes(&mut world, &mut delay, 1, Phase::Parked, 1));
    assert!(passes(&mut world, &mut delay, 0, Phase::Parked, 1));
    assert!(
        !passes(&mut world, &mut delay, 2, Phase::Parked, 1),
        "it is the last one in sight"
    );
}
