//! Pods above the minimum of a gang: they come late or never.

use super::world::{World, id};
use crate::restart::{Announcement, Exit, Generation, GroupPhase, Phase, PodFact, Report};

/// Three workers. The last one is above the minimum and has no pod.
fn without_the_optional_worker() -> World {
    let mut world = World::created(3, 5);
    world.observed.workers.get_mut(&id(2)).unwrap().optional = true;
    for index in 0..2 {
        world.pod(index);
    }
    world.settle();
    world
}

/// The optional worker has a pod, but the pod has no node.
fn pending(world: &mut World) {
    world.observed.workers.get_mut(&id(2)).unwrap().pods = vec![PodFact {
        uid: "pending".to_owned(),
        name: "pending".to_owned(),
        ..PodFact::default()
    }];
    world.settle();
}

fn restarted(world: &World) -> usize {
    let said = world.announcements.iter();
    said.filter(|said| matches!(said, Announcement::Restarted { .. }))
        .count()
}

#[test]
fn a_stage_has_started_without_optional_workers_that_never_came() {
    let mut world = without_the_optional_worker();
    assert!(world.observed.durable.started.contains("workers"));
    assert!(world.observed.durable.joined.is_empty());
    pending(&mut world);
    assert_eq!(
        (world.coordinator.phase(), world.restarts()),
        (GroupPhase::InSync, 0)
    );
}

#[test]
fn a_restart_ends_without_optional_workers_that_never_came() {
    let mut world = without_the_optional_worker();
    pending(&mut world);
    world.fail(0);
    world.settle();
    assert_eq!(
        (world.coordinator.phase(), world.restarts()),
        (GroupPhase::InSync, 1)
    );
    assert_eq!(restarted(&world), 1);
    assert_eq!(world.coordinator.released(), Generation(1));
}

#[test]
fn an_optional_worker_that_comes_late_joins_without_a_restart() {
    let mut world = without_the_optional_worker();
    world.pod(2);
    world.settle();
    assert_eq!(world.current(2).1.phase, Phase::Running);
    assert_eq!(
        (world.restarts(), world.coordinator.generation()),
        (0, Generation(0))
    );
    assert_eq!(Vec::from_iter(&world.observed.durable.joined), ["js-workers-0/2"]);
    // From then on it is a worker like the others.
    world.fail(2);
    world.settle();
    assert_eq!((world.restarts(), restarted(&world)), (1, 1));
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
}

/// A worker that comes during a restart waits until the others have restarted.
#[test]
fn an_optional_worker_that_comes_during_a_restart_joins_after_it() {
    let mut world = without_the_optional_worker();
    world.fail(0);
    world.step();
    world.pod(2);
    world.settle();
    assert_eq!((world.restarts(), restarted(&world)), (1, 1));
    assert_eq!(world.current(2).1.phase, Phase::Running);
    assert_eq!(world.current(2).1.generation, Generation(1));
}

#[test]
fn a_lost_optional_worker_restarts_the_others_which_do_not_wait_for_it() {
    let mut world = without_the_optional_worker();
    world.pod(2);
    world.settle();
    world.lose_pod(2);
    pending(&mut world);
    assert_eq!(
        (world.coordinator.phase(), world.restarts()),
        (GroupPhase::InSync, 1)
    );
    assert_eq!(restarted(&world), 1);
    assert!(world.observed.durable.joined.is_empty());
    // Back again.
    world.pod(2);
    world.settle();
    assert_eq!((world.restarts(), world.current(2).1.phase), (1, Phase::Running));
}

#[test]
fn a_new_leader_tells_an_optional_worker_that_was_lost_from_one_that_never_came() {
    for joined in [false, true] {
        let mut world = without_the_optional_worker();
        if joined {
            world.pod(2);
            world.settle();
            world.lose_pod(2);
        }
        world.new_leader(2);
        world.settle();
        world.tick(20_000);
        world.settle();
        assert_eq!(world.restarts(), usize::from(joined));
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        // Late, but whole.
        world.pod(2);
        world.settle();
        assert_eq!(world.restarts(), usize::from(joined));
        assert_eq!(world.current(2).1.phase, Phase::Running);
    }
}

/// A new leader finds an optional worker that runs: it has joined, whether that was written or not.
#[test]
fn an_optional_worker_that_runs_has_joined() {
    let mut world = without_the_optional_worker();
    world.confirm = false;
    world.pod(2);
    world.settle();
    assert!(world.observed.durable.joined.is_empty());
    world.confirm = true;
    world.new_leader(2);
    world.settle();
    world.tick(20_000);
    world.settle();
    assert_eq!(world.restarts(), 0);
    assert_eq!(world.observed.durable.joined.len(), 1);
}

#[test]
fn optional_workers_that_were_not_wanted_for_a_while_join_again() {
    let mut world = World::running(3, 5);
    for index in 1..3 {
        world.observed.workers.get_mut(&id(index)).unwrap().optional = true;
    }
    world.settle();
    assert!(!world.observed.durable.joined.is_empty());
    for new_leader in [false, true] {
        let mut worker = world.observed.workers.remove(&id(2)).unwrap();
        world
            .observed
            .reports
            .retain(|_, report| report.identity != id(2));
        world.settle();
        if new_leader {
            world.new_leader(2);
            world.settle();
        }
        worker.pods.clear();
        world.observed.workers.insert(id(2), worker);
        world.settle();
        world.pod(2);
        world.settle();
        assert_eq!(world.phases(), [Phase::Running; 3]);
        assert_eq!(
            (world.restarts(), world.observed.durable.counted_restarts),
            (0, 0)
        );
    }
}

/// A group that shrinks and grows again faster than its pods end.
#[test]
fn an_optional_worker_that_is_wanted_again_while_its_pod_goes_has_not_been_lost() {
    for takes_over in [false, true] {
        wanted_again_while_its_pod_goes(takes_over);
    }
}

fn wanted_again_while_its_pod_goes(takes_over: bool) {
    let mut world = World::running(3, 5);
    world.observed.workers.get_mut(&id(2)).unwrap().optional = true;
    world.settle();
    let (incarnation, report) = world.current(2);
    let mut worker = world.observed.workers.remove(&id(2)).unwrap();
    world.settle();
    assert!(world.observed.durable.joined.is_empty());
    worker.pods[0].deleting = true;
    world.observed.workers.insert(id(2), worker);
    world.settle();
    assert!(world.observed.durable.joined.is_empty());
    if takes_over {
        world.new_leader(2);
        world.settle();
    }
    // Now it has ended.
    let exit = Exit {
        code: 143,
        signal: 15,
    };
    let lost = Report {
        phase: Phase::Lost(exit),
        ..report
    };
    world.observed.reports.insert(incarnation, lost);
    world.settle();
    world.pod(2);
    world.settle();
    assert_eq!(world.current(2).1.phase, Phase::Running);
    assert_eq!(world.restarts(), 0);
}

/// It fails at the moment when it is not wanted, and its pod stays.
#[test]
fn an_optional_worker_that_failed_while_it_was_not_wanted_is_started_again() {
    let mut world = World::running(3, 5);
    world.observed.workers.get_mut(&id(2)).unwrap().optional = true;
    world.settle();
    let (incarnation, report) = world.current(2);
    let worker = world.observed.workers.remove(&id(2)).unwrap();
    world.settle();
    let exit = Exit {
        code: 139,
        signal: 11,
    };
    world.report(&incarnation, 2, Phase::Exited(exit), report.generation);
    world.settle();
    assert_eq!(world.restarts(), 0);
    world.observed.workers.insert(id(2), worker);
    world.settle();
    assert_eq!(world.phases(), [Phase::Running; 3]);
    assert_eq!(world.restarts(), 1);
}

/// The only group of optional workers goes before its worker has run, and comes back.
#[test]
fn an_optional_worker_that_was_dropped_before_it_ran_has_not_been_lost() {
    let mut world = World::created(1, 5);
    world.observed.workers.get_mut(&id(0)).unwrap().optional = true;
    world.pod(0);
    world.step();
    let mut worker = world.observed.workers.remove(&id(0)).unwrap();
    world.observed.reports.clear();
    world.observed.unwanted_jobs.insert(id(0).job.to_string());
    world.settle();
    world.observed.unwanted_jobs.clear();
    worker.pods.clear();
    world.observed.workers.insert(id(0), worker);
    world.settle();
    world.pod(0);
    world.settle();
    assert_eq!(world.phases(), [Phase::Running]);
    assert_eq!(
        (world.restarts(), world.observed.durable.counted_restarts),
        (0, 0)
    );
}

/// Its predecessor could not write that an optional worker had joined, and a new leader hears of
/// that worker as late as of a failure, or later. Two generations must not run at once.
#[test]
fn a_restart_stops_an_optional_worker_that_the_leader_sees_for_the_first_time() {
    for later in [false, true] {
        let mut world = World::running(3, 5);
        world.observed.workers.get_mut(&id(2)).unwrap().optional = true;
        let optional = world.current(2).0;
        let known = std::mem::take(&mut world.observed.reports);
        world.new_leader(2);
        world.settle();
        world.tick(20_000);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert!(world.observed.durable.joined.is_empty());
        world.observed.reports = known;
        world.fail(0);
        if later {
            let report = world.observed.reports.remove(&optional).unwrap();
            world.step();
            world.observed.reports.insert(optional.clone(), report);
        }
        world.step();
        for index in 0..2 {
            let incarnation = world.current(index).0;
            world.report(&incarnation, index, Phase::Parked, Generation(1));
        }
        world.step();
        world.report(&optional, 2, Phase::Stopping, Generation(1));
        world.step();
        assert_eq!(world.coordinator.phase(), GroupPhase::Stopping, "{later}");
        world.report(&optional, 2, Phase::Parked, Generation(1));
        world.settle();
        assert_eq!(world.phases(), [Phase::Running; 3]);
        assert_eq!((world.restarts(), restarted(&world)), (1, 1));
        assert_eq!(world.observed.durable.joined.len(), 1);
    }
}
