//! Workers of one pod that have worker restarts: if the pod goes because of one of them, the others
//! go with it, but have not failed.

use super::super::world::{World, id};
use super::scoped;
use crate::restart::{Announcement, EscalateAfter, Generation, Identity, Incarnation, Phase, Report};

fn mate() -> Identity {
    Identity {
        container: "loader".into(),
        ..id(1)
    }
}

/// The mate gets the pods of the worker; in a new pod it is fresh.
fn follow_pod(world: &mut World) {
    let worker = world.observed.workers[&id(1)].clone();
    for pod in &worker.pods {
        let incarnation = Incarnation {
            pod_uid: pod.uid.clone(),
            container_id: format!("loader of {}", pod.uid),
        };
        let report = Report {
            identity: mate(),
            phase: Phase::Fresh,
            generation: Generation(0),
            ..world.current(1).1
        };
        world.observed.reports.entry(incarnation).or_insert(report);
    }
    world.observed.workers.insert(mate(), worker);
}

fn of_mate(world: &World) -> &Report {
    let mut reports = world.observed.reports.values();
    reports.find(|report| report.identity == mate()).unwrap()
}

fn all_run(world: &World) -> bool {
    let mut workers = (0..3).map(|index| world.current(index).1.phase);
    workers.all(|phase| phase == Phase::Running) && of_mate(world).phase == Phase::Running
}

fn two_in_a_pod(max: u32) -> World {
    let mut world = scoped(World::created(3, max), 1);
    for index in 0..3 {
        world.pod(index);
    }
    follow_pod(&mut world);
    world.settle();
    assert!(all_run(&world));
    world
}

fn replace_pod(world: &mut World) {
    for _ in 0..2 {
        world.tend_pods();
        follow_pod(world);
        world.settle();
    }
}

fn stays_down(world: &mut World) {
    world.fail(1);
    world.step();
    world.step();
    // Its agent hears nothing.
    world.tick(60_000);
    world.step();
}

#[test]
fn a_healthy_mate_of_a_worker_that_does_not_come_up_is_not_counted() {
    // Only one failure is allowed.
    let mut world = two_in_a_pod(1);
    stays_down(&mut world);
    world.step();
    assert_eq!(world.condemned.len(), 1);
    replace_pod(&mut world);
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert!(world.observed.durable.worker_restarts.is_empty());
    let escalated = |said: &&Announcement| matches!(said, Announcement::Escalated { .. });
    assert_eq!(world.announcements.iter().filter(escalated).count(), 1);
}

#[test]
fn a_healthy_mate_that_goes_along_again_and_again_is_counted() {
    let mut world = two_in_a_pod(9);
    stays_down(&mut world);
    world.step();
    for counted in 2..=3 {
        world.tend_pods();
        follow_pod(&mut world);
        for _ in 0..5 {
            world.step();
            let (incarnation, deaf) = world.current(1);
            world.obey();
            world.observed.reports.insert(incarnation, deaf);
        }
        assert_eq!(of_mate(&world).phase, Phase::Running);
        world.tick(60_000);
        for _ in 0..2 {
            world.step();
        }
        assert_eq!(world.observed.durable.counted_restarts, counted);
    }
}

#[test]
fn nor_by_a_new_leader() {
    let mut world = two_in_a_pod(1);
    world.fail(1);
    world.step();
    world.step();
    world.tick(60_000);
    world.confirm = false;
    let out = world.step();
    assert_eq!(out.condemned, [], "before the worker of that restart is durable");
    world.confirm_write(out.status.unwrap());
    assert_eq!(world.step().condemned.len(), 1);
    world.confirm = true;
    world.lose_pod(1);
    world.observed.workers.get_mut(&mate()).unwrap().pods.clear();
    world.new_leader(2);
    world.tick(15_000);
    world.settle();
    replace_pod(&mut world);
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_healthy_mate_of_a_worker_that_fails_too_often_is_not_counted() {
    let mut world = two_in_a_pod(2);
    world.observed.policy.escalate_after = Some(EscalateAfter {
        failures: 2,
        within_ms: 600_000,
    });
    for _ in 0..2 {
        world.tick(10_000);
        world.fail(1);
        world.settle();
    }
    assert_eq!(world.condemned.len(), 1);
    replace_pod(&mut world);
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 2);
}

#[test]
fn a_mate_that_fails_itself_is_counted() {
    let mut world = two_in_a_pod(9);
    world.fail(1);
    let (incarnation, report) = {
        let mut reports = world.observed.reports.iter();
        let found = reports.find(|(_, report)| report.identity == mate());
        found
            .map(|(incarnation, report)| (incarnation.clone(), report.clone()))
            .unwrap()
    };
    let failed = Report {
        phase: world.current(1).1.phase,
        since: world.now,
        ..report
    };
    world.observed.reports.insert(incarnation, failed);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 2);
}
