//! Workers that all lack their agents: no daemon reports them until one ends.

use super::world::{World, id};
use crate::restart::{Exit, Generation, GroupPhase, Incarnation, Phase, PodFact, Scope, Worker};

/// Two workers that run without their agents, and their containers.
fn without_agents() -> (World, Vec<Incarnation>) {
    let mut world = World::created(2, 3);
    world.settle();
    let containers = vec![world.pod(0), world.pod(1)];
    world.observed.reports.clear();
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    (world, containers)
}

fn ends(world: &mut World, index: u32, container: &Incarnation, code: i32, released_generation: Option<u64>) {
    let exit = Exit { code, signal: 0 };
    world.report(container, index, Phase::Lost(exit), Generation(0));
    let report = world.observed.reports.get_mut(container).unwrap();
    report.released_generation = released_generation.map(Generation);
}

/// The kubelet has restarted both with their agents.
fn come_again(world: &mut World) {
    world.container(0);
    world.container(1);
    world.settle();
}

type Change = fn(&mut Worker);

/// The Job controller has made other pods.
fn come_again_in_other_pods(world: &mut World) {
    world.pod(0);
    world.pod(1);
    world.settle();
}

#[test]
fn one_that_fails_restarts_its_group_once() {
    let (mut world, containers) = without_agents();
    ends(&mut world, 0, &containers[0], 1, Some(0));
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    come_again(&mut world);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(
        (world.current(0).1.phase, world.current(1).1.phase),
        (Phase::Running, Phase::Running)
    );
    // The report about its first container stays, for a later leader too.
    world.new_leader(2);
    world.tick(20_000);
    world.settle();
    assert_eq!(
        (world.restarts(), world.observed.durable.counted_restarts),
        (1, 1)
    );
}

#[test]
fn the_next_container_does_not_hide_that() {
    for phase in [Phase::Fresh, Phase::Unlinked, Phase::Running] {
        let (mut world, containers) = without_agents();
        ends(&mut world, 0, &containers[0], 1, Some(0));
        let next = world.container(0);
        world.report(&next, 0, phase, Generation(0));
        world.step();
        assert_eq!(world.coordinator.phase(), GroupPhase::Stopping, "{phase:?}");
    }
    // A clock may be set back, so that a later container seems to end earlier.
    let (mut world, containers) = without_agents();
    ends(&mut world, 0, &containers[0], 1, Some(0));
    let next = world.container(0);
    ends(&mut world, 0, &next, 1, None);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
}

#[test]
fn one_that_ends_for_another_reason_is_no_failure() {
    for (code, released_generation) in [(0, Some(0)), (1, None), (137, Some(1))] {
        let (mut world, containers) = without_agents();
        ends(&mut world, 0, &containers[0], code, released_generation);
        world.settle();
        world.container(0);
        world.settle();
        assert_eq!(world.restarts(), 0, "{code} {released_generation:?}");
    }
    let harmless: [(&str, Change); 4] = [
        ("it has worker restarts, and had one", |worker| {
            worker.scope = Scope::Worker
        }),
        ("it may have failed before it joined", |worker| {
            worker.optional = true
        }),
        ("its pod is ended", |worker| worker.pods[0].deleting = true),
        ("another pod lives beside it", |worker| {
            let other = PodFact {
                uid: "other".to_owned(),
                ..worker.pods[0].clone()
            };
            worker.pods.push(other);
        }),
    ];
    for (why, change) in harmless {
        let (mut world, containers) = without_agents();
        world.observed.workers.values_mut().for_each(change);
        ends(&mut world, 0, &containers[0], 1, Some(0));
        world.settle();
        assert_eq!(world.restarts(), 0, "{why}");
    }
}

#[test]
fn pods_that_a_suspension_has_ended_have_not_failed() {
    let (mut world, containers) = without_agents();
    world.observed.suspended = true;
    world.settle();
    for (index, container) in containers.iter().enumerate() {
        let index = u32::try_from(index).unwrap();
        // It has ended, but is not gone yet.
        world.observed.workers.get_mut(&id(index)).unwrap().pods.clear();
        ends(&mut world, index, container, 143, Some(0));
    }
    world.settle();
    world.observed.suspended = false;
    world.settle();
    come_again_in_other_pods(&mut world);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(
        (world.restarts(), world.observed.durable.counted_restarts),
        (0, 0)
    );
}

#[test]
fn a_worker_that_is_done_after_an_unhandled_failure_does_not_run_again() {
    let (mut world, containers) = without_agents();
    ends(&mut world, 0, &containers[0], 1, Some(0));
    let next = world.container(0);
    world.report(&next, 0, Phase::Done, Generation(0));
    world.settle();
    assert_eq!(world.restarts(), 0);
    let worker = world.observed.workers.get_mut(&id(1)).unwrap();
    worker.completed = true;
    world.settle();
    assert_eq!(world.restarts(), 0);
}
