//! One leader: what counts as a failure, its effect, and its cost.

use super::world::{World, id};
use crate::restart::{
    Announcement, DurablePhase, Exit, Generation, GroupPhase, Phase, Reason, RestartLevel, Scope, UnixNanos,
};

#[test]
fn a_group_starts_without_a_restart_and_with_one_write() {
    let world = World::running(4, 3);
    assert_eq!(world.restarts(), 0);
    assert_eq!(world.observed.durable.started.len(), 1);
    assert_eq!(world.writes, 1);
    assert_eq!(world.desired.as_ref().unwrap().generation, Generation(0));
}

#[test]
fn late_workers_of_a_starting_stage_join_without_a_restart() {
    let mut world = World::created(3, 3);
    for index in 0..3 {
        world.pod(index);
        world.settle();
    }
    assert_eq!(world.restarts(), 0);
    assert!(world.starts.values().all(|starts| *starts == 1));
}

#[test]
fn one_failure_restarts_all_once_with_two_writes() {
    let mut world = World::running(4, 3);
    let writes = world.writes;
    world.fail(2);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.observed.durable.released, Generation(1));
    assert_eq!(world.writes - writes, 2);
    assert!(
        world.starts.values().all(|starts| *starts == 2),
        "{:?}",
        world.starts
    );
    let Some(Announcement::Restarted {
        timeline,
        cause,
        level: RestartLevel::Process,
        scope: Scope::Group,
    }) = world.announcements.last()
    else {
        panic!("{:?}", world.announcements)
    };
    assert_eq!(cause.reason, Reason::WorkerExited);
    assert_eq!(cause.identity, Some(id(2)));
    assert!(timeline.failed_at <= timeline.detected_at && timeline.detected_at <= timeline.stopped_at);
    assert!(timeline.stopped_at <= timeline.released_at && timeline.released_at <= timeline.running_at);
    assert!(timeline.written_at > UnixNanos(0));
    assert_eq!(timeline.workers, 4);
}

#[test]
fn a_collapse_of_all_workers_costs_one_restart() {
    let mut world = World::running(4, 3);
    world.fail(0);
    world.step();
    for index in 1..4 {
        world.fail(index);
        world.step();
    }
    world.settle();
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn nothing_is_released_before_the_write_is_confirmed() {
    let mut world = World::running(2, 3);
    world.confirm = false;
    world.fail(0);
    let first = world.step();
    assert!(!first.desired.unwrap().release);
    world.obey();
    let parked = world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Parked);
    assert!(!parked.desired.unwrap().release);
    world.confirm_write(parked.status.unwrap());
    assert!(world.step().desired.unwrap().release);
}

#[test]
fn a_failure_during_the_release_is_another_restart() {
    let mut world = World::running(2, 3);
    world.fail(0);
    world.step();
    world.obey();
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Releasing);
    world.obey();
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert_eq!(world.observed.durable.counted_restarts, 2);
}

#[test]
fn an_unlinked_worker_is_no_failure() {
    let mut world = World::running(2, 3);
    world.set_phase(0, Phase::Unlinked);
    world.settle();
    world.set_phase(0, Phase::Running);
    world.settle();
    assert_eq!(world.restarts(), 0);
}

#[test]
fn a_lost_pod_stops_the_others_and_its_replacement_joins() {
    let mut world = World::running(3, 3);
    world.lose_pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
    let replacement = world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.starts[&replacement], 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn a_container_that_is_restarted_under_its_worker_is_a_failure() {
    let mut world = World::running(2, 3);
    let (old, report) = world.current(0);
    world.report(
        &old,
        0,
        Phase::Lost(Exit { code: 137, signal: 9 }),
        report.generation,
    );
    let fresh = world.container(0);
    world.settle();
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.starts[&fresh], 1);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
}

#[test]
fn that_the_exit_of_a_lost_container_becomes_known_is_no_second_failure() {
    for settled in [false, true] {
        let mut world = World::running(2, 3);
        let (old, report) = world.current(0);
        let unknown = Phase::Lost(Exit { code: 137, signal: 0 });
        world.report(&old, 0, unknown, report.generation);
        world.step();
        world.container(0);
        if settled {
            world.settle();
        }
        let known = Phase::Lost(Exit { code: 42, signal: 0 });
        world.report(&old, 0, known, report.generation);
        world.settle();
        assert_eq!(
            (world.restarts(), world.observed.durable.counted_restarts),
            (1, 1)
        );
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    }
}

#[test]
fn max_restarts_is_never_exceeded() {
    let mut world = World::running(2, 1);
    world.fail(0);
    world.settle();
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Exhausted { .. })
    ));
}

#[test]
fn suspending_and_resuming_is_a_new_generation_that_is_not_counted() {
    let mut world = World::running(2, 3);
    world.observed.suspended = true;
    world.settle();
    for index in 0..2 {
        world.lose_pod(index);
    }
    world.settle();
    assert_eq!(world.observed.durable.generation, Generation(1));
    world.observed.suspended = false;
    for index in 0..2 {
        world.pod(index);
    }
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.observed.durable.counted_restarts, 0);
    assert_eq!(world.restarts(), 0);
}

#[test]
fn no_worker_starts_beside_one_whose_gang_is_not_bound_again() {
    for changes_leader in [false, true] {
        let mut world = World::running(2, 3);
        world.observed.suspended = true;
        world.step();
        // The JobSet is resumed at once. The second worker is in a gang of its own, which has also
        // lost its pods.
        world.observed.suspended = false;
        world.lose_pod(0);
        world.observed.workers.remove(&id(1));
        world.observed.waiting_jobs.insert(id(1).job.to_string());
        if changes_leader {
            world.new_leader(2);
        }
        world.step();
        let first = world.pod(0);
        world.step();
        let desired = world.desired.clone().unwrap();
        assert!(!desired.release, "{changes_leader}: {desired:?}");

        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert_eq!(world.observed.reports[&first].phase, Phase::Running);
        assert_eq!(
            (world.recreations, world.observed.durable.counted_restarts),
            (0, 0)
        );
    }
}

#[test]
fn two_live_pods_of_one_worker_release_neither() {
    let mut world = World::running(2, 3);
    world.fail(0);
    world.step();
    world.obey();
    let twin = world.observed.workers[&id(1)].pods[0].clone();
    let other = crate::restart::PodFact {
        uid: "twin".into(),
        ..twin
    };
    world.observed.workers.get_mut(&id(1)).unwrap().pods.push(other);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Stopping);
}

#[test]
fn a_step_repeated_changes_nothing() {
    let mut world = World::running(3, 3);
    world.fail(0);
    world.confirm = false;
    let once = world.step();
    let twice = world.step();
    assert_eq!(once.desired, twice.desired);
    assert_eq!(once.status, twice.status);
    assert!(twice.announcements.is_empty());
}

#[test]
fn a_restart_that_is_asked_for_is_done_once_and_not_counted() {
    let mut world = World::running(2, 0);
    world.observed.manual_request = Some("now".to_owned());
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counted_restarts, 0);
    assert_eq!(world.observed.durable.handled_request.as_deref(), Some("now"));
    assert!(world.starts.values().all(|starts| *starts == 2));
    let Some(Announcement::Restarted { cause, .. }) = world.announcements.last() else {
        panic!("{:?}", world.announcements)
    };
    assert_eq!(cause.reason, Reason::ManualRequest);
    // A new leader knows that it is done.
    world.new_leader(2);
    world.settle();
    world.tick(20_000);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    world.observed.manual_request = Some("again".to_owned());
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(2));
}

#[test]
fn a_request_made_while_workers_restart_or_before_they_start_is_fulfilled_by_that() {
    let mut world = World::created(2, 3);
    world.observed.manual_request = Some("early".to_owned());
    for index in 0..2 {
        world.pod(index);
    }
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(0));
    assert_eq!(world.observed.durable.handled_request.as_deref(), Some("early"));
    world.fail(0);
    world.step();
    world.observed.manual_request = Some("meanwhile".to_owned());
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(
        world.observed.durable.handled_request.as_deref(),
        Some("meanwhile")
    );
}

#[test]
fn workers_that_had_not_started_when_the_jobset_was_suspended_start_when_it_is_resumed() {
    let mut world = World::running(2, 3);
    world.observed.durable.started.clear();
    world.observed.suspended = true;
    world.new_leader(2);
    world.settle();
    for index in 0..2 {
        world.lose_pod(index);
        world.pod(index);
    }
    world.observed.suspended = false;
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(
        (world.recreations, world.observed.durable.counted_restarts),
        (0, 0)
    );
}

#[test]
fn a_restart_ends_with_those_that_took_part_although_a_stage_has_never_started() {
    let mut world = World::created(3, 5);
    world.observed.workers.get_mut(&id(2)).unwrap().stage = "elsewhere".into();
    world.pod(0);
    world.pod(1);
    world.settle();
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    let durable = &world.observed.durable;
    assert_eq!(
        (durable.phase, durable.released),
        (DurablePhase::InSync, Generation(1))
    );
    let Some(Announcement::Restarted { timeline, level, .. }) = world.announcements.last() else {
        panic!("{:?}", world.announcements);
    };
    assert_eq!((timeline.workers, *level), (2, RestartLevel::Process));

    world.pod(2);
    world.settle();
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}
