//! Requests for worker restarts: exactly these workers restart, once, under any leader.

use lockstep_api::WorkerRestartRequest;

use super::world::{World, all_run, generations, id};
use crate::restart::{
    Durable, Effect, Exit, Fate, Generation, GroupPhase, Phase, Preview, Reason, RestartLevel, Scope, Unmoved,
};

/// Workers 0 and 1 belong to the synchronous part; the others have worker restarts.
fn running(workers: u32) -> World {
    let mut world = World::running(workers, 9);
    for (identity, worker) in &mut world.observed.workers {
        if identity.index >= 2 {
            worker.scope = Scope::Worker;
            worker.stage = "ps".to_owned();
        }
    }
    world.settle();
    assert_eq!(generations(&world), vec![0; workers as usize]);
    world
}

fn request(text: &str) -> WorkerRestartRequest {
    text.parse().unwrap()
}

fn ask(world: &mut World, text: &str) {
    world.observed.worker_restart_request = Some(request(text));
}

fn starts(world: &World) -> u32 {
    world.starts.values().sum()
}

#[test]
fn exactly_those_named_are_restarted_and_it_counts_for_nothing() {
    for (text, expected) in [
        ("worker/js-workers-0/3 t", [0, 0, 0, 1, 0]),
        ("worker/js-workers-0/3/worker t", [0, 0, 0, 1, 0]),
        ("replicatedJob/ps t", [0, 0, 1, 2, 3]),
        // Those of the synchronous part are in the same Job here: they are not touched.
        ("job/js-workers-0 t", [0, 0, 1, 2, 3]),
        ("worker/js-workers-0/1 t", [0; 5]),
        ("worker/js-workers-0/3/other t", [0; 5]),
        ("replicatedJob/workers t", [0; 5]),
        ("job/js-workers-7 t", [0; 5]),
    ] {
        let mut world = running(5);
        let before = starts(&world);
        ask(&mut world, text);
        world.settle();
        assert_eq!(generations(&world), expected, "{text}");
        assert!(all_run(&world), "{text}");
        let restarted = expected.iter().filter(|generation| **generation > 0).count();
        assert_eq!((starts(&world) - before) as usize, restarted, "{text}");
        let durable = &world.observed.durable;
        assert_eq!((durable.counted_restarts, durable.generation), (0, Generation(0)));
        assert_eq!(durable.handled_worker_restart.as_deref(), Some(text));
        assert!(durable.worker_restarts.is_empty());
        assert_eq!(world.restarts(), restarted, "{text}");
    }
}

#[test]
fn a_value_is_acted_upon_once_and_another_one_again() {
    let mut world = running(4);
    for (text, expected) in [
        ("worker/js-workers-0/2 t", 1),
        ("worker/js-workers-0/2 t", 1),
        ("worker/js-workers-0/2 u", 2),
        ("worker/js-workers-0/3 u", 2),
    ] {
        ask(&mut world, text);
        world.settle();
        world.new_leader(world.observed.durable.epoch.0 + 1);
        world.settle();
        assert_eq!(world.current(2).1.generation, Generation(expected), "{text}");
    }
    assert_eq!(generations(&world), [0, 0, 2, 3]);
}

#[test]
fn no_order_is_sent_before_the_request_is_durable() {
    let mut world = running(4);
    world.confirm = false;
    ask(&mut world, "worker/js-workers-0/2 t");
    let first = world.step();
    assert!(first.desired.unwrap().worker_restarts.is_empty());
    let written = first.status.unwrap();
    assert_eq!(written.worker_restarts.keys().collect::<Vec<_>>(), [&id(2)]);
    world.confirm_write(written);
    assert_eq!(world.step().desired.unwrap().worker_restarts.len(), 1);
}

#[test]
fn if_there_is_no_room_for_the_request_no_order_is_sent_and_no_worker_forgotten() {
    let mut world = running(4);
    world.confirm = false;
    ask(&mut world, "worker/js-workers-0/2 t");
    let written = world.step().status.unwrap();
    // With an old definition of JobSets the leader would act on the request again and again.
    world.confirm_write(Durable {
        handled_worker_restart: None,
        ..written
    });
    let out = world.step();
    assert!(out.desired.unwrap().worker_restarts.is_empty());
    let again = out.status.unwrap();
    assert!(
        again.worker_restarts.is_empty() && again.handled_worker_restart.is_none(),
        "{again:?}"
    );
    world.confirm_write(again);
    assert_eq!(world.step().status, None, "that is written once");
    world.obey();
    assert_eq!(generations(&world), [0; 4]);
}

#[test]
fn a_takeover_at_any_step_restarts_each_of_them_once() {
    for at in 0..8 {
        for confirm in [false, true] {
            let mut world = running(5);
            let before = starts(&world);
            ask(&mut world, "replicatedJob/ps t");
            for turn in 0..8 {
                world.confirm = turn != at || confirm;
                world.step();
                if turn == at {
                    world.new_leader(2);
                } else {
                    world.obey();
                }
            }
            world.confirm = true;
            world.settle();
            assert_eq!(generations(&world), [0, 0, 1, 2, 3], "takeover at {at}");
            assert!(all_run(&world), "takeover at {at}");
            assert_eq!(starts(&world) - before, 3, "takeover at {at}");
            assert_eq!(world.observed.durable.counted_restarts, 0);
        }
    }
}

#[test]
fn what_a_former_leader_wrote_at_the_same_numbers_does_not_lose_the_request() {
    let mut world = running(5);
    world.new_leader(2);
    world.settle();
    world.confirm = false;
    ask(&mut world, "replicatedJob/ps t");
    world.step();
    // It has restarted a failed worker, and never heard of the request.
    let mut late = world.observed.durable.clone();
    late.latest = Generation(1);
    late.counted_restarts = 1;
    late.worker_restarts.insert(id(3), Generation(1));
    world.confirm_write(late);
    world.confirm = true;
    world.settle();
    assert!(all_run(&world));
    let mut seen = generations(&world);
    assert_eq!(seen[3], 1, "its other restart fulfils the request");
    seen.sort_unstable();
    assert_eq!((seen[0], seen[1]), (0, 0));
    assert!(seen[2..].iter().all(|generation| *generation > 0), "{seen:?}");
    assert_eq!(world.observed.durable.counted_restarts, 1);
    assert_eq!(
        world.observed.durable.handled_worker_restart.as_deref(),
        Some("replicatedJob/ps t")
    );
}

#[test]
fn a_restart_of_all_fulfils_it() {
    let mut world = running(4);
    world.fail(0);
    world.step();
    ask(&mut world, "worker/js-workers-0/2 t");
    world.settle();
    assert_eq!(generations(&world), [1; 4]);
    assert_eq!(starts(&world), 8);

    // Both are requested at once.
    ask(&mut world, "worker/js-workers-0/2 u");
    world.observed.manual_request = Some("all".to_owned());
    world.settle();
    assert_eq!(generations(&world), [2; 4]);
    assert_eq!(starts(&world), 12);
}

#[test]
fn a_worker_that_fails_in_it_is_a_failure_like_any_other() {
    let mut world = running(4);
    ask(&mut world, "worker/js-workers-0/2 t");
    world.settle();
    world.fail(2);
    world.settle();
    assert_eq!(generations(&world), [0, 0, 2, 0]);
    assert_eq!(world.observed.durable.counted_restarts, 1);
}

#[test]
fn a_group_that_has_failed_or_is_suspended_restarts_no_worker() {
    let mut world = running(4);
    world.observed.policy.max_restarts = 0;
    world.fail(0);
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Failed);
    ask(&mut world, "worker/js-workers-0/2 t");
    world.settle();
    assert_eq!(world.current(2).1.generation, Generation(0));

    let mut world = running(4);
    world.observed.suspended = true;
    ask(&mut world, "worker/js-workers-0/2 t");
    world.settle();
    assert!(world.observed.durable.worker_restarts.is_empty());
    assert!(world.observed.durable.handled_worker_restart.is_some());
}

#[test]
fn workers_of_an_old_node_daemon_without_worker_restarts_are_left_unchanged() {
    let mut world = running(4);
    world.confirm = false;
    ask(&mut world, "worker/js-workers-0/2 t");
    world.step();
    // It comes before any worker has its order.
    for worker in world.observed.workers.values_mut() {
        worker.scope = Scope::Group;
    }
    world.confirm = true;
    world.settle();
    assert_eq!(generations(&world), [0; 4]);
    assert_eq!(world.coordinator.generation(), Generation(0));
}

#[test]
fn workers_above_the_limit_are_left_unchanged() {
    let mut world = running(300);
    let said = preview(&world, "replicatedJob/ps t");
    assert_eq!(said, nothing(Unmoved::NoRoom));
    ask(&mut world, "replicatedJob/ps t");
    world.settle();
    assert_eq!(starts(&world), 300);
    assert!(world.observed.durable.handled_worker_restart.is_some());
}

fn preview(world: &World, text: &str) -> Preview {
    world
        .coordinator
        .preview_worker_restarts(&world.observed, &request(text), world.now)
}

fn nothing(why: Unmoved) -> Preview {
    Preview {
        effect: Effect::Nothing(why),
        workers: [].into(),
    }
}

#[test]
fn a_preview_names_them_and_changes_nothing() {
    let mut world = running(4);
    let before = format!("{:?}", world.coordinator);
    let said = preview(&world, "worker/js-workers-0/2 t");
    let in_place = Effect::InPlace {
        generation: Generation(1),
        level: RestartLevel::Process,
    };
    assert_eq!(said.effect, in_place);
    let fates: Vec<Fate> = said.workers.into_values().collect();
    assert_eq!(
        fates,
        [Fate::NotNamed, Fate::NotNamed, Fate::Stopped, Fate::NotNamed]
    );
    assert_eq!(format!("{:?}", world.coordinator), before);
    assert_eq!(
        preview(&world, "worker/js-workers-0/1 t"),
        nothing(Unmoved::NoneRuns)
    );

    world.confirm = false;
    world.fail(2);
    world.step();
    assert_eq!(
        preview(&world, "worker/js-workers-0/2 t"),
        nothing(Unmoved::UnderWay)
    );
    let fates: Vec<Fate> = preview(&world, "replicatedJob/ps t")
        .workers
        .into_values()
        .collect();
    assert_eq!(
        fates,
        [Fate::NotNamed, Fate::NotNamed, Fate::UnderWay, Fate::Stopped]
    );
    world.confirm = true;
    world.settle();

    ask(&mut world, "worker/js-workers-0/3 t");
    world.settle();
    assert_eq!(
        preview(&world, "worker/js-workers-0/3 t"),
        nothing(Unmoved::Handled)
    );
    world.set_phase(3, Phase::Exited(Exit { code: 0, signal: 0 }));
    world.observed.suspended = true;
    assert_eq!(
        preview(&world, "worker/js-workers-0/3 u"),
        nothing(Unmoved::Suspended)
    );
}

#[test]
fn the_cause_says_that_it_was_requested() {
    let mut world = running(4);
    ask(&mut world, "worker/js-workers-0/2 t");
    world.settle();
    let cause = world.coordinator.cause().unwrap();
    assert_eq!(
        (cause.reason, cause.identity.as_ref()),
        (Reason::ManualRequest, Some(&id(2)))
    );
    assert_eq!(cause.node, "node-0");
}
