//! Completed workers: restarts do not wait for them, their work does not run again, and other exits
//! do not count as completion.

use super::world::{World, id};
use crate::restart::{Announcement, Exit, Generation, GroupPhase, Phase, Reason, RestartLevel, UnixNanos};

#[test]
fn done_workers_leave_the_barrier_and_done_work_is_not_run_again_in_place() {
    let mut world = World::running(2, 3);
    world.set_phase(0, Phase::Done);
    world.settle();
    assert_eq!(world.restarts(), 0);
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_worker_whose_container_stays_down_is_recreated_with_all_others_and_counts_once() {
    let mut world = World::running(3, 3);
    world.observed.workers.get_mut(&id(1)).unwrap().stays_down = true;
    world.settle();
    assert_eq!(world.restarts(), 0, "no worker has failed");
    // Any failure recreates the Jobs: the completed worker could not restart.
    world.fail(0);
    let out = world.step();
    assert!(matches!(
        &out.announcements[..],
        [Announcement::Recreating { cause, .. }] if cause.reason == Reason::StaysDown
    ));
    // The pod of the worker that was killed with the others is not another failure.
    world.lose_pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn the_jobs_of_a_group_with_one_that_stays_down_are_recreated_after_growing_delays() {
    let mut world = World::running(2, 9);
    let changed = world.observed.workers.get_mut(&id(1)).unwrap();
    (changed.level, changed.stays_down) = (RestartLevel::Container, true);
    for wait in [0, 0, 1_000, 2_000] {
        world.fail(0);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
        world.observed.old_pods = 0;
        for index in 0..2 {
            world.pod(index);
        }
        world.settle();
        let is_held = world.coordinator.phase() == GroupPhase::Recreating;
        assert_eq!(is_held, wait > 0, "{wait}");
        world.tick(wait);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    }
}

#[test]
fn a_worker_that_is_seen_to_stay_down_once_others_stop_is_recreated() {
    let mut world = World::running(2, 3);
    world.fail(0);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    world.observed.workers.get_mut(&id(1)).unwrap().stays_down = true;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_finished_stage_is_left_unchanged() {
    let mut world = World::running(2, 3);
    let optional = crate::restart::Worker {
        stage: "init".into(),
        completed: true,
        ..Default::default()
    };
    world.observed.workers.insert(
        crate::restart::Identity {
            job: "js-init-0".into(),
            index: 0,
            container: "c".into(),
        },
        optional,
    );
    world.observed.finished_stages.insert("init".into());
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn exit_0_in_a_pod_that_is_replaced_is_not_done() {
    let mut world = World::running(2, 3);
    // An evicted worker answers SIGTERM with exit 0; Kubernetes does not count that and replaces
    // the pod.
    let (old, report) = world.current(0);
    world.report(
        &old,
        0,
        Phase::Lost(Exit { code: 0, signal: 0 }),
        report.generation,
    );
    world.settle();
    assert_eq!(world.restarts(), 0);
    world.lose_pod(0);
    let replacement = world.pod(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.starts[&replacement], 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn exit_0_is_not_done_if_the_kubelet_starts_the_container_again() {
    for phase in [Phase::Done, Phase::Lost(Exit { code: 0, signal: 0 })] {
        for leader_changes in [false, true] {
            // A probe has failed, and the worker exits with 0 on the kubelet's SIGTERM.
            let mut world = World::running(3, 3);
            world.set_phase(0, phase);
            world.settle();
            assert_eq!(
                (world.restarts(), world.coordinator.phase()),
                (0, GroupPhase::InSync)
            );
            let next = world.container(0);
            if leader_changes {
                world.new_leader(2);
            }
            world.step();
            assert_eq!(world.coordinator.phase(), GroupPhase::Stopping, "{phase:?}");
            let Some(Announcement::Restarting { cause, .. }) = world.announcements.last() else {
                panic!("{:?}", world.announcements)
            };
            assert_eq!(cause.reason, Reason::ContainerLost);

            // The daemon of the new container is away for a moment: that completes nothing.
            let (_, report) = world.current(0);
            world.settle();
            assert_eq!(
                (world.restarts(), world.coordinator.phase()),
                (1, GroupPhase::InSync)
            );
            world.report(&next, 0, Phase::Unlinked, Generation(1));
            world.settle();
            world.report(&next, 0, Phase::Running, Generation(1));
            world.fail(1);
            world.settle();
            assert_eq!((world.restarts(), world.recreations), (2, 0), "{report:?}");
            assert_eq!(world.current(0).1.phase, Phase::Running);
        }
    }
}

#[test]
fn a_container_of_before_does_not_make_done_work_undone() {
    let mut world = World::running(2, 3);
    let (lost, report) = world.current(0);
    world.report(
        &lost,
        0,
        Phase::Lost(Exit { code: 137, signal: 9 }),
        report.generation,
    );
    let next = world.container(0);
    world.settle();
    assert_eq!(world.restarts(), 1);
    world.set_phase(0, Phase::Done);
    // The node's clock was set back meanwhile.
    world.observed.reports.get_mut(&next).unwrap().since = UnixNanos(1);
    world.settle();
    world.settle();
    assert_eq!((world.restarts(), world.recreations), (1, 0));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}
