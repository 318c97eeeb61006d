//! Worker restarts: no other worker is touched, and each failure counts once, under any leader.

mod pod_mates;
mod takeover;

use super::world::{World, all_run, generations, id};
use crate::restart::{
    Announcement, Durable, EscalateAfter, Exit, Generation, GroupPhase, Heartbeat, Phase, Reason,
    RestartLevel, Scope, TerminalAction, TerminalRule,
};

/// All workers have worker restarts, except the first `head`.
fn scoped(mut world: World, head: u32) -> World {
    for (identity, worker) in &mut world.observed.workers {
        if identity.index >= head {
            worker.scope = Scope::Worker;
        }
    }
    world
}

fn running(workers: u32, max: u32) -> World {
    let world = scoped(World::running(workers, max), 1);
    assert_eq!(world.writes, 1);
    world
}

fn starts(world: &World) -> Vec<u32> {
    world.starts.values().copied().collect()
}

#[test]
fn pods_without_a_node_do_not_delay_those_with_one() {
    let mut world = running(300, 9999);
    for index in 1..=260 {
        world.lose_pod(index);
    }
    world.settle();
    world.fail(280);
    world.settle();
    assert_eq!(world.current(280).1.phase, Phase::Running);
    assert_eq!(world.observed.durable.worker_restarts.len(), 192);
    // Workers whose pods come up after all are started, even if they have missed their turn.
    for index in 1..=260 {
        world.pod(index);
    }
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 261, "each counts once");
}

#[test]
fn nor_do_pods_that_lose_their_node_once_their_restart_has_begun() {
    // As many as allowed.
    let mut world = running(300, 257);
    for index in 1..=256 {
        world.fail(index);
    }
    world.step();
    world.step();
    assert_eq!(world.observed.durable.worker_restarts.len(), 256);
    for index in 1..=256 {
        world.lose_pod(index);
    }
    world.settle();
    world.fail(280);
    world.settle();
    assert_eq!(world.current(280).1.phase, Phase::Running);
    for index in 1..=256 {
        world.pod(index);
    }
    world.settle();
    assert!(all_run(&world), "{}", world.coordinator.phase());
    assert!(world.observed.durable.worker_restarts.is_empty());
    assert_eq!(world.observed.durable.counted_restarts, 257, "each counts once");
    // A later failure counts by itself.
    world.tick(600_000);
    world.fail(256);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
}

#[test]
fn one_failure_restarts_one_worker_with_two_writes() {
    let mut world = running(4, 3);
    let writes = world.writes;
    world.fail(2);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.coordinator.generation(), Generation(0));
    assert_eq!(generations(&world), [0, 0, 1, 0]);
    assert!(all_run(&world));
    assert_eq!(starts(&world).iter().sum::<u32>(), 5);
    assert_eq!(world.writes - writes, 2);
    let durable = &world.observed.durable;
    assert_eq!(
        (
            durable.counted_restarts,
            durable.latest,
            durable.worker_restarts.len()
        ),
        (1, Generation(1), 0)
    );
    let Some(Announcement::Restarted {
        scope: Scope::Worker,
        timeline,
        cause,
        level: RestartLevel::Process,
    }) = world.announcements.last()
    else {
        panic!("{:?}", world.announcements)
    };
    assert_eq!(
        (cause.reason, cause.identity.as_ref()),
        (Reason::WorkerExited, Some(&id(2)))
    );
    assert_eq!((timeline.generation, timeline.workers), (Generation(1), 1));
    assert!(timeline.failed_at <= timeline.detected_at && timeline.detected_at <= timeline.written_at);
    assert!(timeline.written_at <= timeline.released_at && timeline.released_at <= timeline.running_at);
}

#[test]
fn no_order_is_sent_before_it_is_durable() {
    let mut world = running(3, 3);
    world.confirm = false;
    world.fail(1);
    let first = world.step();
    assert!(first.desired.unwrap().worker_restarts.is_empty());
    world.obey();
    assert_eq!(
        world.current(1).1.phase,
        Phase::Exited(Exit { code: 137, signal: 9 })
    );
    let written = first.status.unwrap();
    assert_eq!(
        written.worker_restarts.iter().collect::<Vec<_>>(),
        [(&id(1), &Generation(1))]
    );
    world.confirm_write(written);
    let told = world.step().desired.unwrap().worker_restarts;
    assert_eq!(
        told.values().map(|restart| restart.release).collect::<Vec<_>>(),
        [true]
    );
}

#[test]
fn an_ended_container_is_held_until_the_next_one_reports() {
    let mut world = running(3, 3);
    let (ended, _) = world.current(1);
    world.set_phase(1, Phase::Lost(Exit { code: 137, signal: 9 }));
    world.step();
    let told = |world: &mut World| {
        let told = world.step().desired.unwrap().worker_restarts;
        let told = told
            .into_iter()
            .map(|(who, restart)| (who, restart.generation, restart.release));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&mut world), [(ended, Generation(1), false)]);
    let next = world.container(1);
    world.step();
    assert_eq!(told(&mut world), [(next, Generation(1), true)]);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn several_are_restarted_at_a_time_and_each_counts() {
    let mut world = running(5, 9);
    for index in [1, 3, 4] {
        world.fail(index);
    }
    world.settle();
    assert_eq!(world.observed.durable.counted_restarts, 3);
    assert!(all_run(&world));
    let mut seen = generations(&world);
    seen.sort_unstable();
    assert_eq!(seen, [0, 0, 1, 2, 3]);
}

#[test]
fn at_most_as_many_as_allowed() {
    let mut world = running(3, 2);
    for _ in 0..2 {
        world.tick(10_000);
        world.fail(1);
        world.settle();
        assert!(all_run(&world));
    }
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    assert_eq!(world.observed.durable.counted_restarts, 2);
}

#[test]
fn a_worker_of_group_scope_takes_all_with_it() {
    let mut world = running(3, 9);
    world.fail(2);
    world.settle();
    assert_eq!(generations(&world), [0, 0, 1]);
    world.fail(0);
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(2));
    assert_eq!(generations(&world), [2, 2, 2]);
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 2);
    assert_eq!(world.observed.durable.latest, Generation(0));
    assert_eq!(starts(&world).iter().sum::<u32>(), 3 + 1 + 3);
}

#[test]
fn a_restart_of_the_group_absorbs_one_that_is_under_way() {
    for confirm in [false, true] {
        let mut world = running(3, 9);
        world.confirm = confirm;
        world.fail(2);
        world.step();
        world.fail(0);
        world.step();
        world.confirm = true;
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert_eq!(generations(&world), [2, 2, 2]);
        assert_eq!(world.observed.durable.counted_restarts, 2);
        assert!(world.observed.durable.worker_restarts.is_empty());
        assert_eq!(starts(&world).iter().sum::<u32>(), 3 + 3);
    }
}

#[test]
fn a_lost_pod_is_replaced_without_a_barrier() {
    let mut world = running(3, 9);
    world.lose_pod(1);
    world.settle();
    assert!(world.replace);
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    world.pod(1);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(generations(&world), [0, 1, 0]);
    assert_eq!(world.observed.durable.counted_restarts, 1);
    let Some(Announcement::Restarted { timeline, level, .. }) = world.announcements.last() else {
        panic!("{:?}", world.announcements)
    };
    assert_eq!((*level, timeline.replaced), (RestartLevel::Pod, 1));
}

#[test]
fn a_container_that_is_lost_before_its_order_is_the_same_failure() {
    let mut world = running(3, 9);
    world.fail(1);
    world.step();
    world.step();
    let (incarnation, report) = world.current(1);
    let killed = Exit { code: 137, signal: 9 };
    world.report(&incarnation, 1, Phase::Lost(killed), report.generation);
    world.settle();
    world.container(1);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(generations(&world), [0, 1, 0]);
}

#[test]
fn a_worker_that_fails_at_once_is_another_failure_and_waits_for_its_own_back_off() {
    let mut world = running(3, 9);
    world.fail(1);
    world.settle();
    world.fail(1);
    world.settle();
    assert!(all_run(&world), "the first quick failure is free");
    world.fail(1);
    world.settle();
    assert_eq!(world.current(1).1.phase, Phase::Parked);
    world.fail(2);
    world.settle();
    assert_eq!(world.current(2).1.phase, Phase::Running, "others do not wait");
    world.tick(1_000);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 4);
}

#[test]
fn a_hung_worker_has_a_worker_restart() {
    let mut world = running(3, 9);
    world.beat(2, Heartbeat::Missed);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(generations(&world), [0, 0, 1]);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn completed_work_does_not_stand_in_its_way() {
    let mut world = running(3, 9);
    world.set_phase(2, Phase::Done);
    world.fail(1);
    world.settle();
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_eq!(world.current(1).1.generation, Generation(1));
    assert_eq!(world.recreations, 0);
}

#[test]
fn a_worker_that_does_not_start_in_time_is_moved_and_no_other_is_touched() {
    let mut world = running(3, 9);
    let before = (world.current(0).0, world.current(2).0);
    world.fail(1);
    world.step();
    world.step();
    // Its agent hears nothing.
    world.tick(60_000);
    world.step();
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Escalated { condemned, after: None }) if condemned.identity == id(1)
    ));
    world.tend_pods();
    world.step();
    world.tend_pods();
    world.settle();
    assert!(all_run(&world));
    assert_eq!((world.current(0).0, world.current(2).0), before);
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(world.recreations, 0);
}

#[test]
fn if_its_pod_must_stay_all_jobs_are_recreated_instead() {
    let mut world = running(3, 9);
    world.observed.workers.get_mut(&id(1)).unwrap().keeps_pod = true;
    world.fail(1);
    world.step();
    world.step();
    // Its agent hears nothing.
    world.tick(60_000);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
    assert!(matches!(
        world.announcements.last(),
        Some(Announcement::Recreating { cause, .. }) if cause.reason == Reason::TimedOut
    ));
}

#[test]
fn a_worker_that_comes_up_in_a_pod_that_goes_has_failed_once() {
    let mut world = running(3, 9);
    world.fail(1);
    world.step();
    world.step();
    world.tick(60_000);
    world.step();
    assert_eq!(world.condemned.len(), 1);
    world.settle();
    world.tend_pods();
    world.settle();
    world.tend_pods();
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_worker_out_of_sight_is_waited_for() {
    let mut world = running(3, 9);
    world.fail(1);
    world.step();
    world.step();
    let (incarnation, report) = world.current(1);
    world.set_phase(1, Phase::Unlinked);
    for _ in 0..3 {
        world.tick(60_000);
        world.settle();
    }
    assert_eq!(world.condemned, []);
    assert!(
        world
            .announcements
            .iter()
            .any(|said| matches!(said, Announcement::Blocked(blocked) if blocked.pod == incarnation.pod_uid))
    );
    world.report(&incarnation, 1, report.phase, report.generation);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_worker_that_fails_too_often_is_moved_in_the_restart_that_counts_once() {
    let mut world = running(3, 9);
    world.observed.policy.escalate_after = Some(EscalateAfter {
        failures: 2,
        within_ms: 600_000,
    });
    let before = world.current(1).0;
    for _ in 0..2 {
        world.tick(10_000);
        world.fail(1);
        world.settle();
    }
    assert_eq!(world.condemned.len(), 1);
    world.tend_pods();
    world.settle();
    assert!(all_run(&world));
    assert_ne!(world.current(1).0.pod_uid, before.pod_uid);
    assert_eq!(world.observed.durable.counted_restarts, 2);
}

#[test]
fn a_node_daemon_that_does_not_know_of_it_makes_it_a_restart_of_all_that_counts_once() {
    let mut world = running(3, 9);
    world.confirm = false;
    world.fail(1);
    world.step();
    world.confirm = true;
    for worker in world.observed.workers.values_mut() {
        worker.scope = Scope::Group;
    }
    world.settle();
    assert!(all_run(&world));
    assert_eq!(generations(&world), [2, 2, 2]);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_code_that_fails_the_job_restarts_no_worker() {
    let mut world = running(3, 9);
    world.observed.policy.terminal_rules = vec![TerminalRule {
        job: id(0).job.to_string(),
        container: None,
        negated: false,
        codes: vec![42],
        action: TerminalAction::FailJob,
    }];
    world.set_phase(1, Phase::Exited(Exit { code: 42, signal: 0 }));
    world.settle();
    assert_eq!(world.restarts(), 0);
    assert_eq!(world.observed.durable.counted_restarts, 0);
}

#[test]
fn a_request_restarts_all_and_takes_the_next_number() {
    let mut world = running(3, 9);
    world.fail(2);
    world.settle();
    world.observed.manual_request = Some("now".to_owned());
    world.settle();
    assert_eq!(generations(&world), [2, 2, 2]);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn while_the_jobs_are_being_recreated_a_failing_worker_does_not_wait_for_the_last() {
    let mut world = running(3, 9);
    world.set_phase(1, Phase::Unlinked);
    world.fail(0);
    world.settle();
    world.tick(60_000);
    world.settle();
    world.observed.old_pods = 0;
    world.pod(0);
    world.pod(1);
    world.settle();
    world.fail(1);
    world.settle();
    assert_eq!(world.current(1).1.phase, Phase::Running);
    assert_eq!(world.observed.durable.counted_restarts, 2);
    world.pod(2);
    world.settle();
    assert!(all_run(&world));
    assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
    assert_ne!(world.observed.durable, Durable::default());
}
