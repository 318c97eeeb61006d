//! Lost pods: when they may be replaced, how that is reported, and when a replacement cannot help.

use super::world::{World, id};
use crate::restart::{
    Announcement, Generation, GroupPhase, Phase, Reason, RestartLevel, TerminalAction, TerminalRule,
};

/// How many workers of the last restart run in another pod, and the level of that restart.
fn last_restart(world: &World) -> (usize, RestartLevel) {
    match world.announcements.last() {
        Some(Announcement::Restarted { timeline, level, .. }) => (timeline.replaced, *level),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restart_reports_how_many_pods_were_replaced() {
    let mut world = World::running(4, 9);
    world.fail(0);
    world.settle();
    assert_eq!(last_restart(&world), (0, RestartLevel::Process));
    world.lose_pod(1);
    world.lose_pod(3);
    world.settle();
    world.pod(1);
    world.pod(3);
    world.settle();
    assert_eq!(last_restart(&world), (2, RestartLevel::Pod));
}

#[test]
fn a_pod_that_is_lost_under_another_restart_counts_as_replaced() {
    let mut world = World::running(3, 9);
    world.fail(0);
    world.step();
    world.lose_pod(1);
    world.settle();
    world.pod(1);
    world.settle();
    assert_eq!(last_restart(&world), (1, RestartLevel::Pod));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_new_leader_knows_of_the_pod_that_the_restart_is_about() {
    let mut world = World::running(3, 9);
    world.lose_pod(1);
    world.new_leader(2);
    world.settle();
    world.tick(15_000);
    world.settle();
    world.pod(1);
    world.settle();
    assert_eq!(last_restart(&world), (1, RestartLevel::Pod));
}

#[test]
fn lost_pods_are_replaced_while_workers_run_or_restart_and_at_no_other_time() {
    let mut world = World::running(2, 1);
    assert!(world.step().replace);
    world.lose_pod(0);
    assert!(world.step().replace);
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.new_leader(2);
    assert!(world.step().replace, "under any leader");
    world.tick(15_000);
    world.settle();
    world.tick(60_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert!(!world.step().replace, "the Jobs are about to go");

    let mut world = World::running(2, 0);
    world.lose_pod(0);
    assert!(!world.step().replace);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);

    let mut world = World::running(2, 1);
    world.observed.suspended = true;
    assert!(!world.step().replace);
}

#[test]
fn a_pod_that_fails_its_job_is_not_replaced() {
    let mut world = World::running(2, 3);
    world.observed.policy.terminal_rules.push(TerminalRule {
        job: id(0).job.to_string(),
        container: None,
        negated: false,
        codes: vec![42],
        action: TerminalAction::FailJob,
    });
    let exit = crate::restart::Exit { code: 42, signal: 0 };
    world.set_phase(0, Phase::Exited(exit));
    assert!(!world.step().replace);
    world.tick(60_000);
    world.settle();
    assert!(world.step().replace, "but not forever");
}

fn left_to_the_job_controller(back_off_ms: u64) -> World {
    let mut world = World::running(2, 3);
    world.observed.policy.replaces_pods = false;
    for worker in world.observed.workers.values_mut() {
        worker.back_off_ms = back_off_ms;
    }
    world.lose_pod(0);
    world.settle();
    world
}

#[test]
fn if_the_job_controller_would_be_late_the_jobs_are_recreated_at_once() {
    let world = left_to_the_job_controller(80_000);
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.recreations, 1);
    assert_eq!(world.observed.durable.counted_restarts, 1);
    let cause = world.observed.durable.cause.as_ref().unwrap();
    assert_eq!(cause.reason, Reason::ReplacementLate);
}

#[test]
fn if_it_would_be_in_time_the_restart_waits_for_it() {
    let mut world = left_to_the_job_controller(40_000);
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.pod(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn its_back_off_does_not_matter_while_the_pods_exist() {
    let mut world = left_to_the_job_controller(0);
    world.pod(0);
    for worker in world.observed.workers.values_mut() {
        worker.back_off_ms = 600_000;
    }
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}
