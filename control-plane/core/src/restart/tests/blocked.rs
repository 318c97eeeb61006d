//! What blocks a group, and that it is reported once.

use super::world::{World, id};
use crate::restart::{
    Announcement, Blockage, BlockedReason, Exit, Generation, GroupPhase, Incarnation, Phase, PodFact,
};

fn blockage(world: &mut World) -> Option<(BlockedReason, String)> {
    match world.step().blocked {
        Blockage::By(blocked) => Some((blocked.reason, blocked.pod)),
        Blockage::Clear => None,
        Blockage::Unknown => panic!("not known in {}", world.coordinator.phase()),
    }
}

fn said(world: &World) -> usize {
    let blocked = |said: &&Announcement| matches!(said, Announcement::Blocked(_));
    world.announcements.iter().filter(blocked).count()
}

fn pod(world: &mut World, index: u32) -> &mut PodFact {
    &mut world.observed.workers.get_mut(&id(index)).unwrap().pods[0]
}

fn node_lost(world: &mut World, index: u32, lost: bool) -> String {
    let pod = pod(world, index);
    pod.node_lost = lost;
    pod.name.clone()
}

/// Removes all reports of this index's pod, as after a change of leaders.
fn unreport(world: &mut World, index: u32) -> String {
    let pod = pod(world, index).clone();
    let reports = &mut world.observed.reports;
    reports.retain(|incarnation, _| incarnation.pod_uid != pod.uid);
    pod.name
}

#[test]
fn a_healthy_group_has_no_report_and_waits_for_nothing() {
    let mut world = World::running(3, 3);
    let out = world.step();
    assert_eq!((out.blocked, out.wake_at), (Blockage::Clear, None));
}

#[test]
fn a_pod_on_a_lost_node_is_named_until_the_node_is_back() {
    let mut world = World::running(3, 3);
    world.set_phase(1, Phase::Unlinked);
    assert_eq!(blockage(&mut world), None, "only the daemon is away");
    let name = node_lost(&mut world, 1, true);
    let expected = Some((BlockedReason::NodeLost, name));
    assert_eq!(blockage(&mut world), expected);
    assert_eq!(blockage(&mut world), expected);
    assert_eq!(world.restarts(), 0, "and no worker restarts for it");
    world.set_phase(1, Phase::Running);
    assert_eq!(blockage(&mut world), None, "its daemon reports");
    assert_eq!(said(&world), 1);
}

#[test]
fn a_report_stays_while_it_holds_however_many_pods_are_blocked() {
    let mut world = World::running(4, 3);
    for index in 0..4 {
        world.set_phase(index, Phase::Unlinked);
    }
    let second = node_lost(&mut world, 2, true);
    assert_eq!(
        blockage(&mut world),
        Some((BlockedReason::NodeLost, second.clone()))
    );
    let first = node_lost(&mut world, 0, true);
    assert_eq!(blockage(&mut world), Some((BlockedReason::NodeLost, second)));
    node_lost(&mut world, 2, false);
    assert_eq!(blockage(&mut world), Some((BlockedReason::NodeLost, first)));
    assert_eq!(said(&world), 1);
}

#[test]
fn a_pod_that_runs_and_is_not_reported_is_named_after_the_time_out() {
    let mut world = World::running(2, 3);
    let name = unreport(&mut world, 1);
    assert_eq!(blockage(&mut world), None);
    let wake = world.step().wake_at.unwrap();
    assert_eq!(wake, world.now.plus_millis(60_000));
    world.tick(59_999);
    assert_eq!(blockage(&mut world), None);
    world.tick(1);
    assert_eq!(
        blockage(&mut world),
        Some((BlockedReason::WorkerNotReported, name))
    );
    world.container(1);
    assert_eq!(blockage(&mut world), None);
}

#[test]
fn a_pod_that_does_not_run_yet_has_nothing_to_report() {
    let mut world = World::running(2, 3);
    unreport(&mut world, 1);
    pod(&mut world, 1).running = false;
    world.step();
    world.tick(600_000);
    assert_eq!(blockage(&mut world), None);
    pod(&mut world, 1).running = true;
    assert_eq!(blockage(&mut world), None, "its time begins now");
    world.tick(60_000);
    assert!(blockage(&mut world).is_some());
}

#[test]
fn a_container_that_kubelet_is_slow_to_start_again_falls_to_a_recreation() {
    let mut world = World::running(2, 3);
    let (old, report) = world.current(1);
    let exit = Exit { code: 137, signal: 9 };
    world.report(&old, 1, Phase::Lost(exit), report.generation);
    world.step();
    world.tick(59_999);
    assert_eq!(blockage(&mut world), None);
    world.tick(1);
    world.settle();
    assert_eq!(world.recreations, 1);
}

#[test]
fn a_worker_that_is_being_started_and_never_is_has_its_pod_named() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Starting);
    assert_eq!(blockage(&mut world), None);
    world.tick(60_000);
    let name = pod(&mut world, 1).name.clone();
    assert_eq!(
        blockage(&mut world),
        Some((BlockedReason::WorkerNotReported, name))
    );
    world.set_phase(1, Phase::Running);
    assert_eq!(blockage(&mut world), None);
}

#[test]
fn an_ended_container_says_nothing_about_a_successor_without_an_agent() {
    let mut world = World::running(2, 3);
    let name = unreport(&mut world, 1);
    blockage(&mut world);
    world.tick(60_000);
    let named = Some((BlockedReason::WorkerNotReported, name));
    assert_eq!(blockage(&mut world), named);
    let incarnation = Incarnation {
        pod_uid: pod(&mut world, 1).uid.clone(),
        container_id: "without-agent".into(),
    };
    let failed = Exit { code: 1, signal: 0 };
    world.report(&incarnation, 1, Phase::Lost(failed), Generation(0));
    assert_eq!(blockage(&mut world), named);
}

#[test]
fn a_worker_that_came_up_without_its_agent_is_named_and_holds_a_restart_no_longer_than_the_time_out() {
    for leader in [1, 2] {
        let mut world = World::running(2, 3);
        // Its container was created while the daemon was away, so it has no agent: it runs, and no
        // daemon reports it.
        let name = unreport(&mut world, 1);
        world.step();
        world.fail(0);
        world.settle();
        if leader > 1 {
            world.new_leader(leader);
            world.step();
            world.tick(15_000);
        }
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
        world.tick(60_000);
        let named = Some((BlockedReason::WorkerNotReported, name));
        assert!(leader > 1 || blockage(&mut world) == named);
        world.settle();
        assert_eq!(
            (world.recreations, world.observed.durable.counted_restarts),
            (1, 1)
        );
        world.observed.old_pods = 0;
        world.pod(0);
        world.pod(1);
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
        assert_eq!(
            (world.recreations, world.observed.durable.counted_restarts),
            (1, 1)
        );
    }
}

#[test]
fn an_old_pod_that_stays_holds_new_workers_back_and_is_named_after_the_time_out() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Unlinked);
    world.fail(0);
    world.settle();
    world.tick(60_000);
    world.settle();
    world.observed.old_pod = Some(PodFact {
        uid: "old".into(),
        name: "old-pod".into(),
        node: Some("n".into()),
        ..PodFact::default()
    });
    world.pod(0);
    world.pod(1);
    world.settle();
    assert_eq!(blockage(&mut world), None);
    world.tick(60_000);
    assert_eq!(
        blockage(&mut world),
        Some((BlockedReason::OldPodRemains, "old-pod".to_owned()))
    );
    assert!(world.phases().iter().all(|phase| *phase == Phase::Parked));
    world.observed.old_pods = 0;
    world.observed.old_pod = None;
    world.settle();
    assert_eq!(blockage(&mut world), None);
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.coordinator.generation(), Generation(2));
}

#[test]
fn a_leader_that_does_not_know_yet_keeps_the_last_report() {
    let mut world = World::running(2, 3);
    world.observed.heard_nodes.clear();
    world.new_leader(2);
    assert_eq!(world.step().blocked, Blockage::Unknown);
    world.observed.durable.epoch = crate::restart::Epoch(9);
    assert_eq!(
        world.step().blocked,
        Blockage::Unknown,
        "nor does a former leader"
    );
}

#[test]
fn a_suspended_group_waits_for_nothing() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Unlinked);
    node_lost(&mut world, 1, true);
    assert!(blockage(&mut world).is_some());
    world.observed.suspended = true;
    assert_eq!(blockage(&mut world), None);
}

#[test]
fn a_worker_that_was_out_of_sight_when_it_was_released_is_named_until_it_is_seen() {
    let mut world = World::running(2, 3);
    world.fail(0);
    world.step();
    world.obey();
    world.step();
    world.set_phase(1, Phase::Unlinked);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(blockage(&mut world), None, "it may well run");
    world.tick(60_000);
    let name = pod(&mut world, 1).name.clone();
    assert_eq!(
        blockage(&mut world),
        Some((BlockedReason::WorkerNotReported, name))
    );
    world.set_phase(1, Phase::Running);
    assert_eq!(blockage(&mut world), None);
    assert_eq!(world.restarts(), 1, "no worker restarts for it");
}
