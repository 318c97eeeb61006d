//! Jobs that end their workers themselves: because they have failed, by their own successPolicy, or
//! at their deadline. That is not a failure of workers.

use super::world::{World, id};
use crate::restart::{Exit, GroupPhase, Phase, TerminalAction, TerminalRule, UnixNanos};

#[test]
fn an_exit_code_that_fails_the_job_is_left_to_the_job() {
    let mut world = World::running(2, 3);
    world.observed.policy.terminal_rules.push(TerminalRule {
        job: id(0).job.to_string(),
        container: None,
        negated: false,
        codes: vec![42],
        action: TerminalAction::FailJob,
    });
    world.set_phase(0, Phase::Exited(Exit { code: 42, signal: 0 }));
    world.settle();
    assert_eq!(world.restarts(), 0);
    // The Job controller ends the other pods at once, and removes the failed one.
    world.set_phase(
        1,
        Phase::Lost(Exit {
            code: 143,
            signal: 15,
        }),
    );
    world.settle();
    world.lose_pod(0);
    world.settle();
    assert_eq!(world.restarts(), 0);
    world.tick(60_000);
    world.settle();
    assert_eq!(world.restarts(), 1, "but not forever");
}

#[test]
fn pods_that_end_because_their_job_is_being_failed_are_no_failures() {
    let mut world = World::running(2, 3);
    for worker in world.observed.workers.values_mut() {
        worker.ending = true;
    }
    world.lose_pod(1);
    world.settle();
    assert_eq!(world.restarts(), 0);
}

/// The last two of three workers are ended from outside, one shortly after the other.
fn ended_from_outside(world: &mut World) {
    for index in 1..3 {
        let (incarnation, report) = world.current(index);
        let ended = Exit {
            code: 143,
            signal: 15,
        };
        world.report(&incarnation, index, Phase::Lost(ended), report.generation);
        world.settle();
    }
}

#[test]
fn a_job_that_succeeds_before_all_of_its_workers_have_ends_them_without_a_restart() {
    let mut world = World::running(3, 0);
    for worker in world.observed.workers.values_mut() {
        worker.ends_early = true;
    }
    world.set_phase(0, Phase::Done);
    ended_from_outside(&mut world);
    assert_eq!(
        world.coordinator.phase(),
        GroupPhase::InSync,
        "the Job will say why"
    );
    assert!(!world.replace);
    for worker in world.observed.workers.values_mut() {
        worker.completed = true;
        worker.pods.clear();
    }
    world.tick(600_000);
    world.settle();
    assert_eq!(
        (world.coordinator.phase(), world.restarts()),
        (GroupPhase::InSync, 0)
    );
}

#[test]
fn an_index_that_has_failed_for_good_lets_no_loss_wait() {
    let mut world = World::running(3, 1);
    for worker in world.observed.workers.values_mut() {
        worker.ends_early = true;
    }
    let given_up = world.observed.workers.get_mut(&id(0)).unwrap();
    given_up.failed = true;
    given_up.pods.clear();
    world.settle();
    assert_eq!(world.restarts(), 0, "the others go on without it");
    let (incarnation, report) = world.current(1);
    let ended = Exit {
        code: 143,
        signal: 15,
    };
    world.report(&incarnation, 1, Phase::Lost(ended), report.generation);
    world.step();
    assert_eq!(
        world.observed.durable.counted_restarts, 1,
        "it has not ended because the Job has succeeded"
    );
}

#[test]
fn a_job_whose_time_is_over_ends_its_workers_without_a_restart() {
    let mut world = World::running(3, 3);
    let now = world.now;
    for worker in world.observed.workers.values_mut() {
        worker.ends_at = Some(now.plus_millis(1_500));
    }
    ended_from_outside(&mut world);
    assert_eq!(
        (world.coordinator.phase(), world.restarts()),
        (GroupPhase::InSync, 0)
    );
    for worker in world.observed.workers.values_mut() {
        worker.ending = true;
    }
    world.tick(600_000);
    world.settle();
    assert_eq!(world.restarts(), 0, "the failure policy decides");
}

#[test]
fn that_a_job_ends_its_workers_is_not_believed_for_ever() {
    let mut world = World::running(3, 3);
    let later = world.now.plus_millis(3_600_000);
    for worker in world.observed.workers.values_mut() {
        worker.ends_at = Some(later);
    }
    world.fail(1);
    world.settle();
    assert_eq!(world.restarts(), 1, "it has time left");
    let now = world.now;
    for worker in world.observed.workers.values_mut() {
        worker.ends_at = Some(now);
    }
    let (incarnation, report) = world.current(1);
    let ended = Exit {
        code: 143,
        signal: 15,
    };
    world.report(&incarnation, 1, Phase::Lost(ended), report.generation);
    world.settle();
    assert_eq!(world.restarts(), 1);
    world.tick(30_000);
    world.step();
    assert_eq!(world.restarts(), 2);
}

#[test]
fn a_clock_that_is_wrong_neither_restarts_the_workers_of_a_job_whose_time_is_over_nor_holds_others() {
    for wrong_ms in [-36_000_000_i64, -300_000, 300_000, 36_000_000] {
        // The time of the Job's clock, in this clock.
        let at = |world: &World, millis: i64| UnixNanos(world.now.0 + (millis - wrong_ms) * 1_000_000);
        let mut world = World::running(3, 3);
        let over = at(&world, 0);
        for worker in world.observed.workers.values_mut() {
            worker.ends_at = Some(over);
        }
        ended_from_outside(&mut world);
        world.tick(1_000);
        world.settle();
        for worker in world.observed.workers.values_mut() {
            worker.ending = true;
        }
        world.tick(600_000);
        world.settle();
        assert_eq!(world.restarts(), 0, "the Job soon reports its deadline");

        let mut world = World::running(3, 3);
        let has_time = at(&world, 3_600_000);
        for worker in world.observed.workers.values_mut() {
            worker.ends_at = Some(has_time);
        }
        world.lose_pod(1);
        world.step();
        world.tick(2_000);
        world.step();
        assert_eq!(world.restarts(), 1, "it reports nothing");
    }
}

#[test]
fn a_worker_that_fails_by_itself_was_not_ended_by_its_job() {
    let mut world = World::running(3, 3);
    let now = world.now;
    for worker in world.observed.workers.values_mut() {
        worker.ends_at = Some(now);
    }
    world.fail(1);
    world.settle();
    assert_eq!(world.restarts(), 1);
}
