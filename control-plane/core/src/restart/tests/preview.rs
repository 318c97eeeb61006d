//! The preview of a restart equals its effect.

use super::world::{World, id};
use crate::restart::{
    Effect, Exit, Fate, Generation, GroupPhase, Phase, Preview, Reason, RestartLevel, Unmoved,
};

fn preview(world: &World, token: &str) -> Preview {
    world.coordinator.preview(&world.observed, token, world.now)
}

fn nothing(why: Unmoved) -> Preview {
    Preview {
        effect: Effect::Nothing(why),
        workers: [].into(),
    }
}

fn request(world: &mut World, token: &str) {
    world.observed.manual_request = Some(token.to_owned());
}

#[test]
fn it_names_the_workers_that_would_stop_and_changes_nothing() {
    let mut world = World::running(3, 3);
    let before = format!("{:?}", world.coordinator);
    let said = preview(&world, "t");
    assert_eq!(
        said.effect,
        Effect::InPlace {
            generation: Generation(1),
            level: RestartLevel::Process
        }
    );
    assert!(said.workers.values().all(|fate| *fate == Fate::Stopped));
    assert_eq!(said.workers.len(), 3);
    assert_eq!(format!("{:?}", world.coordinator), before);

    request(&mut world, "t");
    world.settle();
    assert_eq!(world.coordinator.generation(), Generation(1));
    assert_eq!(preview(&world, "t"), nothing(Unmoved::Handled));
    assert!(matches!(preview(&world, "u").effect, Effect::InPlace { .. }));
}

#[test]
fn a_worker_that_is_done_or_has_not_started_is_left_unchanged() {
    let mut world = World::created(4, 3);
    for (index, stage) in [(0, "early"), (1, "early"), (3, "late")] {
        world.observed.workers.get_mut(&id(index)).unwrap().stage = stage.into();
    }
    for index in 0..3 {
        world.pod(index);
    }
    world.settle();
    // The stage `early` has finished: one of its workers is done, the other was not needed. The
    // worker of `late` has no pod yet.
    world.observed.workers.get_mut(&id(0)).unwrap().completed = true;
    world.observed.finished_stages.insert("early".into());
    world.settle();
    let said = preview(&world, "t");
    let fates: Vec<Fate> = said.workers.into_values().collect();
    assert_eq!(
        fates,
        [Fate::Done, Fate::Finished, Fate::Stopped, Fate::NotStarted]
    );
}

#[test]
fn completed_workers_of_an_unfinished_stage_are_recreated() {
    let mut world = World::running(2, 3);
    world.set_phase(1, Phase::Done);
    let said = preview(&world, "t");
    assert_eq!(
        said.effect,
        Effect::Recreate {
            generation: Generation(1),
            reason: Reason::WorkDone,
        }
    );
    assert!(said.workers.values().all(|fate| *fate == Fate::Stopped));
    request(&mut world, "t");
    world.step();
    assert_eq!(world.coordinator.phase(), GroupPhase::Recreating);
}

#[test]
fn if_nothing_would_be_done_it_says_why() {
    let mut world = World::created(2, 0);
    assert_eq!(preview(&world, "t"), nothing(Unmoved::NoneRuns));
    world.new_leader(2);
    world.pod(0);
    world.observed.heard_nodes.clear();
    assert_eq!(preview(&world, "t"), nothing(Unmoved::Recovering));

    let mut world = World::running(2, 1);
    world.fail(0);
    // The coordinator has not seen it yet: the restart for the failure would fulfil the request.
    assert_eq!(preview(&world, "t"), nothing(Unmoved::UnderWay));
    world.step();
    assert_eq!(preview(&world, "t"), nothing(Unmoved::UnderWay));
    world.settle();
    world.observed.suspended = true;
    assert_eq!(preview(&world, "t"), nothing(Unmoved::Suspended));

    let mut world = World::running(2, 0);
    world.set_phase(0, Phase::Exited(Exit { code: 1, signal: 0 }));
    world.step();
    assert_eq!(preview(&world, "t"), nothing(Unmoved::Failed));
}

#[test]
fn containers_without_an_agent_are_stopped_by_container() {
    let mut world = World::running(2, 3);
    for worker in world.observed.workers.values_mut() {
        worker.level = RestartLevel::Container;
    }
    let said = preview(&world, "t");
    assert!(
        matches!(
            said.effect,
            Effect::InPlace {
                level: RestartLevel::Container,
                ..
            }
        ),
        "{said:?}"
    );
}
