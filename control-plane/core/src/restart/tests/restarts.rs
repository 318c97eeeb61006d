//! One leader: what counts as a failure, what it leads to, and what it costs.

use super::world::{World, id};
use crate::restart::{
    Announcement, Exit, Generation, Phase, Reason, Rung, Scope, TerminalAction, TerminalRule, UnixNanos,
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
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counter, 1);
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
        rung: Rung::Process,
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
    assert_eq!(world.observed.durable.counter, 1);
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
    assert_eq!(world.coordinator.state_name(), "Parked");
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
    assert_eq!(world.coordinator.state_name(), "Releasing");
    world.obey();
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert_eq!(world.observed.durable.counter, 2);
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
fn a_worker_out_of_sight_holds_the_barrier_until_the_time_out_then_jobs_are_made_anew() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Unlinked);
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Stopping");
    world.tick(60_000);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Recreating");
    assert_eq!(world.recreations, 1);
    assert_eq!(
        world.observed.durable.counter, 1,
        "the fall back is not counted again"
    );

    world.pod(0);
    world.pod(1);
    world.settle();
    assert!(
        world.phases().iter().all(|phase| *phase == Phase::Parked),
        "new workers wait while an old pod lives"
    );
    world.observed.old_pods = 0;
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Restarted {
            rung: Rung::Recreate,
            ..
        })
    ));
}

#[test]
fn a_lost_pod_stops_the_others_and_its_replacement_joins() {
    let mut world = World::running(3, 3);
    world.lose_pod(1);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Stopping");
    let replacement = world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
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
    assert_eq!(world.observed.durable.counter, 1);
    assert_eq!(world.starts[&fresh], 1);
    assert_eq!(world.coordinator.state_name(), "InSync");
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
        assert_eq!((world.restarts(), world.observed.durable.counter), (1, 1));
        assert_eq!(world.coordinator.state_name(), "InSync");
    }
}

#[test]
fn max_restarts_is_never_exceeded() {
    let mut world = World::running(2, 1);
    world.fail(0);
    world.settle();
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Failed");
    assert_eq!(world.observed.durable.counter, 1);
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Exhausted { .. })
    ));
}

#[test]
fn done_workers_leave_the_barrier_and_done_work_is_not_run_again_in_place() {
    let mut world = World::running(2, 3);
    world.set_phase(0, Phase::Done);
    world.settle();
    assert_eq!(world.restarts(), 0);
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Recreating");
    assert_eq!(world.observed.durable.counter, 1);
}

#[test]
fn a_finished_stage_is_left_alone() {
    let mut world = World::running(2, 3);
    let extra = crate::restart::Worker {
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
        extra,
    );
    world.observed.finished_stages.insert("init".into());
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn an_exit_code_that_fails_the_job_is_left_to_the_job() {
    let mut world = World::running(2, 3);
    world.observed.policy.terminal.push(TerminalRule {
        job: id(0).job,
        container: None,
        negated: false,
        codes: vec![42],
        action: TerminalAction::FailJob,
    });
    world.set_phase(0, Phase::Exited(Exit { code: 42, signal: 0 }));
    world.settle();
    assert_eq!(world.restarts(), 0);
    // The Job controller ends the other pods at once, and removes the one that failed.
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
    assert_eq!(world.restarts(), 1, "but not for ever");
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
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert!(world.phases().iter().all(|phase| *phase == Phase::Running));
    assert_eq!(world.observed.durable.counter, 0);
    assert_eq!(world.restarts(), 0);
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
    assert_eq!(world.coordinator.state_name(), "Stopping");
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
fn exit_0_in_a_pod_that_is_replaced_is_not_done() {
    let mut world = World::running(2, 3);
    // An evicted worker answers SIGTERM with exit 0; Kubernetes does not count that and replaces the pod.
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
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!(world.starts[&replacement], 1);
    assert_eq!(world.coordinator.generation(), Generation(1));
}

#[test]
fn exit_0_is_not_done_where_kubelet_starts_the_container_again() {
    for phase in [Phase::Done, Phase::Lost(Exit { code: 0, signal: 0 })] {
        for leader_changes in [false, true] {
            // A probe has failed, and the worker answers kubelet's SIGTERM with 0.
            let mut world = World::running(3, 3);
            world.set_phase(0, phase);
            world.settle();
            assert_eq!((world.restarts(), world.coordinator.state_name()), (0, "InSync"));
            let next = world.container(0);
            if leader_changes {
                world.new_leader(2);
            }
            world.step();
            assert_eq!(world.coordinator.state_name(), "Stopping", "{phase:?}");
            let Some(Announcement::Restarting { cause, .. }) = world.announcements.last() else {
                panic!("{:?}", world.announcements)
            };
            assert_eq!(cause.reason, Reason::ContainerLost);

            // The daemon of the new container is away for a moment: nothing is done by that.
            let (_, report) = world.current(0);
            world.settle();
            assert_eq!((world.restarts(), world.coordinator.state_name()), (1, "InSync"));
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
    assert_eq!(world.coordinator.state_name(), "InSync");
}

#[test]
fn time_without_the_api_server_does_not_count() {
    let mut world = World::running(2, 3);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    world.tick(600_000);
    world.step();
    assert_eq!(world.coordinator.state_name(), "Parked");
    world.confirm = true;
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!(world.recreations, 0);
}

#[test]
fn the_reconciler_may_take_the_generation_for_a_recreation() {
    let mut world = World::running(2, 3);
    world.confirm = false;
    world.fail(0);
    world.step();
    world.obey();
    let mut theirs = world.observed.durable.clone();
    theirs.generation = Generation(1);
    theirs.counter = 1;
    theirs.started.clear();
    theirs.phase = crate::restart::DurablePhase::Recreating;
    world.confirm_write(theirs);
    world.confirm = true;
    world.settle();
    assert_eq!(
        world.coordinator.state_name(),
        "Recreating",
        "the old pods are still there"
    );
    world.observed.old_pods = 0;
    world.pod(0);
    world.pod(1);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!((world.observed.durable.counter, world.recreations), (1, 1));
}

#[test]
fn a_worker_that_fails_twice_as_soon_as_it_is_released_is_made_to_wait() {
    let mut world = World::running(2, 10);
    for _ in 0..2 {
        world.fail(0);
        world.settle();
        assert_eq!(world.coordinator.state_name(), "InSync");
    }
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "Parked");
    let out = world.step();
    assert!(out.wake_at.is_some());
    world.tick(1000);
    world.settle();
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!(world.observed.durable.counter, 3);
}

#[test]
fn a_restart_that_is_asked_for_is_done_once_and_not_counted() {
    let mut world = World::running(2, 0);
    world.observed.manual_request = Some("now".to_owned());
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(world.observed.durable.counter, 0);
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
    assert_eq!(world.observed.durable.counter, 1);
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
    assert_eq!(world.coordinator.state_name(), "InSync");
    assert_eq!((world.recreations, world.observed.durable.counter), (0, 0));
}

#[test]
fn who_parked_in_time_may_go_out_of_sight_while_the_release_waits() {
    let mut world = World::running(2, 3);
    world.fail(0);
    let out = world.coordinator.step(&world.observed, world.now);
    world.desired = out.desired;
    world.obey();
    // The API server is away for longer than the time-out: nothing becomes durable.
    world.coordinator.step(&world.observed, world.now);
    assert_eq!(world.coordinator.state_name(), "Parked");
    world.tick(120_000);
    world.set_phase(1, Phase::Unlinked);
    world.coordinator.step(&world.observed, world.now);
    assert_eq!(world.coordinator.state_name(), "Stopping");
    world.set_phase(1, Phase::Parked);
    world.settle();
    assert_eq!((world.coordinator.state_name(), world.recreations), ("InSync", 0));
}

/// The last two of three workers are ended from outside, a moment after each other.
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
    assert_eq!(world.coordinator.state_name(), "InSync", "the Job will say why");
    assert!(!world.replace);
    for worker in world.observed.workers.values_mut() {
        worker.completed = true;
        worker.pods.clear();
    }
    world.tick(600_000);
    world.settle();
    assert_eq!((world.coordinator.state_name(), world.restarts()), ("InSync", 0));
}

#[test]
fn a_job_whose_time_is_over_ends_its_workers_without_a_restart() {
    let mut world = World::running(3, 3);
    let now = world.now;
    for worker in world.observed.workers.values_mut() {
        worker.ends_at = Some(now.plus_millis(1_500));
    }
    ended_from_outside(&mut world);
    assert_eq!((world.coordinator.state_name(), world.restarts()), ("InSync", 0));
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
        // What the Job's clock says, by this one.
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
        assert_eq!(world.restarts(), 0, "the Job says soon that its time is over");

        let mut world = World::running(3, 3);
        let has_time = at(&world, 3_600_000);
        for worker in world.observed.workers.values_mut() {
            worker.ends_at = Some(has_time);
        }
        world.lose_pod(1);
        world.step();
        world.tick(2_000);
        world.step();
        assert_eq!(world.restarts(), 1, "it says nothing");
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
