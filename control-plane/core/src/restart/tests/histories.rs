//! Histories that the simulation has found, each reduced to what matters.

use super::world::World;
use crate::restart::{Generation, GroupPhase, Phase};

#[test]
fn a_worker_that_goes_out_of_sight_before_its_first_start_has_not_started() {
    let mut world = World::created(2, 3);
    world.pod(0);
    world.step();
    world.obey();
    world.pod(1);
    world.step();
    // Its daemon goes away before the order reaches it.
    world.set_phase(1, Phase::Unlinked);
    for _ in 0..3 {
        world.step();
    }
    assert!(world.observed.durable.started.is_empty());

    world.set_phase(1, Phase::Fresh);
    world.new_leader(2);
    world.settle();
    assert_eq!(world.restarts(), 0);
    assert_eq!(world.coordinator.generation(), Generation(0));
    assert!(world.starts.values().all(|starts| *starts == 1));
}

#[test]
fn a_job_that_is_deleted_and_made_again_costs_one_restart() {
    let mut world = World::running(1, 3);
    world.lose_pod(0);
    world.step();
    let workers = std::mem::take(&mut world.observed.workers);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);

    world.observed.workers = workers;
    world.settle();
    world.pod(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn no_worker_is_released_after_a_suspension_while_a_former_worker_still_runs() {
    for new_leader in [false, true] {
        let mut world = World::running(2, 3);
        world.observed.suspended = true;
        world.step();
        world.lose_pod(0);
        world.observed.suspended = false;
        world.pod(0);
        if new_leader {
            world.new_leader(2);
        }
        for _ in 0..3 {
            let out = world.step();
            assert!(!out.desired.is_some_and(|desired| desired.release));
        }

        world.lose_pod(1);
        world.pod(1);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
        assert_eq!(world.observed.durable.counted_restarts, 0);
    }
}

#[test]
fn no_worker_is_released_after_a_suspension_while_a_pod_from_before_the_recreation_lives() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Unlinked);
    world.fail(0);
    world.settle();
    world.tick(60_000);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.observed.old_pods, 2);

    world.observed.suspended = true;
    world.settle();
    world.observed.suspended = false;
    world.pod(0);
    world.pod(1);
    world.settle();
    assert!(world.phases().iter().all(|phase| *phase != Phase::Running));

    world.observed.old_pods = 0;
    world.settle();
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
}

#[test]
fn a_running_pod_without_reports_holds_the_barrier() {
    let mut world = World::created(2, 3);
    world.pod(0);
    world.settle();
    world.pod(1);
    world.settle();
    // The leader died before it recorded the start of the stage, and one of the daemons is away.
    world.observed.durable.started.clear();
    let (unseen, report) = world.current(1);
    world.observed.reports.remove(&unseen);
    world.new_leader(2);
    world.tick(15_000);
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);

    world.observed.reports.insert(unseen, report);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert!(world.starts.values().all(|starts| *starts == 2));
}

#[test]
fn a_new_leader_whose_watch_of_pods_lags_restarts_nothing() {
    let mut world = World::running(2, 3);
    let seen = world.observed.clone();
    for worker in world.observed.workers.values_mut() {
        worker.pods.clear();
    }
    world.observed.reports.clear();
    world.new_leader(2);
    world.settle();
    world.tick(5_000);
    world.observed = seen;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.restarts(), 0);
}
