//! Workers that fail soon after a restart in place: the pod is recreated before the failures use up
//! `maxRestarts`.

use proptest::prelude::*;

use super::nodes::{CRASHED, Nodes};
use super::world::{World, id};
use crate::restart::{
    Announcement, DurablePhase, EscalateAfter, Exit, Generation, GroupPhase, Heartbeat, Phase, Reason,
    RestartLevel, Scope,
};

/// The worker exits by itself.
fn exits(world: &mut World, index: u32) {
    world.set_phase(index, Phase::Exited(Exit { code: 1, signal: 0 }));
    wait(world);
}

/// Steps until nothing happens: pods come and go as planned, Jobs are recreated, back-off passes.
fn wait(world: &mut World) {
    world.settle();
    for _ in 0..4 {
        world.tend_pods();
        if world.coordinator.phase() == GroupPhase::Recreating || world.observed.old_pods > 0 {
            world.observed.old_pods = 0;
            for index in 0..world.observed.workers.len() {
                world.pod(u32::try_from(index).unwrap());
            }
        }
        world.settle();
        if matches!(
            world.coordinator.phase(),
            GroupPhase::Parked | GroupPhase::Recreating
        ) {
            world.tick(60_000);
            world.settle();
        }
    }
}

fn pods(world: &World) -> Vec<String> {
    let workers = world.observed.workers.values();
    workers.map(|worker| worker.pods[0].uid.clone()).collect()
}

fn counted(world: &World) -> u32 {
    world.observed.durable.counted_restarts
}

fn why(world: &World) -> Reason {
    world.observed.durable.cause.as_ref().unwrap().reason
}

fn climbs(world: &World) -> usize {
    let climbed = |said: &&Announcement| matches!(said, Announcement::Climbed { .. });
    world.announcements.iter().filter(climbed).count()
}

#[test]
fn what_outlives_a_restart_in_place_costs_one_count_and_the_pod_of_its_worker() {
    let mut world = World::running(3, 5);
    let before = pods(&world);
    exits(&mut world, 0);
    assert_eq!((counted(&world), pods(&world)), (1, before.clone()));
    exits(&mut world, 0);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((counted(&world), why(&world)), (1, Reason::FailedAgain));
    let after = pods(&world);
    assert_ne!(before[0], after[0], "its pod is recreated");
    assert_eq!(before[1..], after[1..], "no other pod");
    assert_eq!(world.observed.durable.level, Some(RestartLevel::Pod));
    assert_eq!((world.recreations, climbs(&world)), (0, 1));
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
}

#[test]
fn one_that_fails_there_too_has_all_jobs_recreated_and_counts_again_after_that() {
    let mut world = World::running(2, 9);
    for (round, (count, recreations)) in [(1, 0), (1, 0), (1, 1), (2, 1), (2, 1), (2, 2)]
        .into_iter()
        .enumerate()
    {
        exits(&mut world, 1);
        let seen = (counted(&world), world.recreations);
        assert_eq!(seen, (count, recreations), "failure {round}");
    }
    assert_eq!(why(&world), Reason::FailedInNewPod);
}

#[test]
fn a_program_that_never_starts_fails_after_at_most_three_tries_for_each_count() {
    for max in 0..6 {
        for workers in [1, 3] {
            let mut world = World::running(workers, max);
            let mut failures = 0;
            while world.coordinator.phase() != GroupPhase::Failed {
                exits(&mut world, failures % workers);
                failures += 1;
                assert!(failures <= 3 * max + 2, "maxRestarts {max}: {failures} failures");
            }
            assert_eq!(counted(&world), max);
        }
    }
}

#[test]
fn the_first_such_failure_of_another_worker_counts() {
    let mut world = World::running(2, 5);
    exits(&mut world, 1);
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (2, 0));
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (2, 1));
}

#[test]
fn a_worker_that_ended_by_itself_with_another_climbs_from_its_restart() {
    let mut world = World::running(3, 2);
    let before = pods(&world);
    for index in 0..2 {
        world.set_phase(index, Phase::Exited(Exit { code: 1, signal: 0 }));
    }
    wait(&mut world);
    assert_eq!((counted(&world), climbs(&world)), (1, 0));
    // Worker 1 is the first to fail again. Only its pod is recreated.
    exits(&mut world, 1);
    assert_eq!((counted(&world), climbs(&world)), (1, 1));
    assert_eq!((&before[0], &before[2]), (&pods(&world)[0], &pods(&world)[2]));
    assert_ne!(before[1], pods(&world)[1]);

    let mut world = World::running(3, 2);
    exits(&mut world, 0);
    exits(&mut world, 1);
    assert_eq!(
        (counted(&world), climbs(&world)),
        (2, 0),
        "it ran well until it was stopped"
    );
}

#[test]
fn a_worker_that_ran_for_a_minute_or_is_killed_does_not_climb() {
    let mut world = World::running(2, 9);
    for _ in 0..3 {
        exits(&mut world, 0);
        world.tick(60_001);
    }
    assert_eq!((counted(&world), climbs(&world)), (3, 0));
    for _ in 0..3 {
        world.fail(0);
        wait(&mut world);
    }
    assert_eq!((counted(&world), climbs(&world)), (6, 0));
    world.set_phase(0, Phase::Exited(Exit { code: 137, signal: 0 }));
    wait(&mut world);
    assert_eq!((counted(&world), climbs(&world)), (7, 0));
}

#[test]
fn if_no_restart_is_left_all_jobs_are_recreated_once() {
    let mut world = World::running(2, 1);
    exits(&mut world, 1);
    exits(&mut world, 0);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((counted(&world), world.recreations), (1, 1));
    assert_eq!(why(&world), Reason::LastResort);
    exits(&mut world, 0);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    assert_eq!((counted(&world), world.recreations), (1, 1));
}

#[test]
fn one_that_hangs_soon_is_given_that_too_and_one_that_is_killed_or_fails_later_is_not() {
    let mut world = World::running(2, 1);
    exits(&mut world, 1);
    world.beat(0, Heartbeat::Missed);
    wait(&mut world);
    assert_eq!(
        (world.coordinator.phase(), world.recreations),
        (GroupPhase::InSync, 1)
    );

    let mut world = World::running(2, 1);
    exits(&mut world, 1);
    world.fail(0);
    wait(&mut world);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);

    let mut world = World::running(2, 1);
    exits(&mut world, 1);
    world.tick(60_001);
    exits(&mut world, 1);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
}

#[test]
fn a_new_leader_counts_what_it_cannot_tell_and_still_knows_the_last_resort() {
    let mut world = World::running(2, 2);
    exits(&mut world, 0);
    world.new_leader(2);
    world.settle();
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (2, 0));
    world.new_leader(3);
    world.settle();
    exits(&mut world, 0);
    assert_eq!((counted(&world), world.recreations), (2, 1));
    // The last resort was used, as the status shows.
    world.new_leader(4);
    world.settle();
    exits(&mut world, 0);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    assert_eq!(world.observed.durable.phase, DurablePhase::Failed);
}

#[test]
fn no_worker_climbs_from_a_requested_restart() {
    let mut world = World::running(2, 3);
    exits(&mut world, 0);
    world.observed.manual_request = Some("now".to_owned());
    wait(&mut world);
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (2, 0));
}

#[test]
fn a_pod_that_was_lost_anyway_is_not_recreated_again() {
    let mut world = World::running(2, 9);
    world.observed.policy.escalate_after = Some(EscalateAfter {
        failures: 1,
        within_ms: 600_000,
    });
    exits(&mut world, 0);
    assert_eq!((counted(&world), world.recreations), (1, 0));
    exits(&mut world, 0);
    assert_eq!((counted(&world), world.recreations, climbs(&world)), (1, 1, 0));
}

#[test]
fn a_pod_whose_deletion_its_job_would_count_stays_and_the_last_resort_is_all_jobs() {
    let mut world = World::running(2, 2);
    for worker in world.observed.workers.values_mut() {
        worker.keeps_pod = true;
    }
    let before = pods(&world);
    exits(&mut world, 0);
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (2, 0));
    assert_eq!(pods(&world), before);
    exits(&mut world, 0);
    assert_eq!((counted(&world), world.recreations), (2, 1));
    assert_eq!(why(&world), Reason::LastResort);
}

#[test]
fn a_worker_restart_that_keeps_its_pod_has_all_jobs_as_its_last_resort() {
    let mut world = World::running(3, 1);
    for worker in world.observed.workers.values_mut() {
        worker.scope = Scope::Worker;
        worker.keeps_pod = true;
    }
    exits(&mut world, 1);
    assert_eq!((counted(&world), world.recreations), (1, 0));
    exits(&mut world, 1);
    assert_eq!((counted(&world), world.recreations), (1, 1));
    assert_eq!(why(&world), Reason::LastResort);
}

#[test]
fn a_worker_restart_recreates_its_own_pod_and_touches_no_other() {
    let mut world = World::running(3, 2);
    for worker in world.observed.workers.values_mut() {
        worker.scope = Scope::Worker;
    }
    let before = pods(&world);
    exits(&mut world, 1);
    assert_eq!((counted(&world), pods(&world)), (1, before.clone()));
    exits(&mut world, 1);
    assert_eq!((counted(&world), why(&world)), (1, Reason::FailedAgain));
    let after = pods(&world);
    assert_ne!(before[1], after[1]);
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]));
    // Failures in the new pod count again; then a new pod is the last resort, once.
    exits(&mut world, 1);
    assert_eq!(counted(&world), 2);
    exits(&mut world, 1);
    assert_eq!((counted(&world), climbs(&world)), (2, 2));
    assert_eq!(world.coordinator.generation(), Generation(0));
    assert_eq!(world.recreations, 0);
    exits(&mut world, 1);
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
}

#[test]
fn its_last_resort_is_not_lost_because_the_pod_of_another_was_recreated() {
    let mut world = World::running(3, 1);
    world.observed.workers.get_mut(&id(2)).unwrap().scope = Scope::Worker;
    exits(&mut world, 0);
    exits(&mut world, 0);
    assert_eq!((counted(&world), climbs(&world)), (1, 1));
    let before = pods(&world);
    exits(&mut world, 2);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((counted(&world), climbs(&world)), (1, 2));
    let after = pods(&world);
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
}

#[test]
fn without_agents_all_jobs_are_the_last_resort_of_a_worker_that_fails_again() {
    let mut nodes = Nodes::running(2, 2);
    for count in 1..=2 {
        nodes.end(0, CRASHED);
        nodes.settle();
        assert_eq!(
            (counted(&nodes), nodes.coordinator.phase()),
            (count, GroupPhase::InSync)
        );
    }
    nodes.end(0, CRASHED);
    nodes.settle();
    assert_eq!((counted(&nodes), nodes.recreations), (2, 1));
    nodes.observed.old_pods = 0;
    nodes.pod(0);
    nodes.pod(1);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    nodes.end(0, CRASHED);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Failed);
}

#[test]
fn without_agents_the_last_resort_is_there_for_another_worker_too() {
    let mut nodes = Nodes::running(2, 1);
    nodes.end(1, CRASHED);
    nodes.settle();
    nodes.end(0, CRASHED);
    nodes.settle();
    assert_eq!((counted(&nodes), nodes.recreations), (1, 1));
    assert_eq!(why(&nodes), Reason::LastResort);
}

#[test]
fn jobs_recreated_for_a_worker_that_fails_at_once_wait_for_the_back_off() {
    let mut world = World::running(1, 9);
    exits(&mut world, 0);
    exits(&mut world, 0);
    world.set_phase(0, Phase::Exited(Exit { code: 1, signal: 0 }));
    world.settle();
    world.observed.old_pods = 0;
    world.pod(0);
    world.settle();
    assert_eq!(
        (world.coordinator.phase(), world.recreations),
        (GroupPhase::Recreating, 1)
    );
    assert!(world.step().wake_at.is_some());
    assert!(world.phases().iter().all(|phase| *phase != Phase::Running));
    world.tick(4_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
}

proptest! {
    #[test]
    fn failures_in_any_order_cause_at_most_three_restarts_for_each_count_and_one(
        failures in proptest::collection::vec((0..3u32, any::<bool>()), 20),
        max in 0..5u32,
    ) {
        let mut world = World::running(3, max);
        for (index, changes_leader) in failures {
            if world.coordinator.phase() == GroupPhase::Failed {
                break;
            }
            exits(&mut world, index);
            if changes_leader {
                world.new_leader(world.observed.durable.epoch.0 + 1);
                wait(&mut world);
            }
        }
        prop_assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
        prop_assert_eq!(counted(&world), max);
        let generation = world.coordinator.generation().0;
        prop_assert!(generation <= u64::from(3 * max + 1), "{} restarts", generation);
    }
}
