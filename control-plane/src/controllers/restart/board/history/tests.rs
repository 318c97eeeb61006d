use lockstep_core::restart::{Identity, Reason};

use super::*;

fn cause(index: u32) -> Cause {
    Cause {
        reason: Reason::WorkerExited,
        identity: Some(Identity {
            job: "js-w-0".into(),
            index,
            container: "worker".into(),
        }),
        pod: String::new(),
        node: String::new(),
        exit: None,
        at: Some(UnixNanos(5)),
        said: None,
    }
}

fn begun(scope: Scope, generation: u64, index: u32) -> Announcement {
    Announcement::Restarting {
        scope,
        generation: Generation(generation),
        cause: cause(index),
    }
}

fn done(scope: Scope, generation: u64) -> Announcement {
    Announcement::Restarted {
        scope,
        timeline: Timeline {
            generation: Generation(generation),
            failed_at: UnixNanos(4),
            running_at: UnixNanos(9),
            ..Timeline::default()
        },
        cause: cause(0),
        level: RestartLevel::Process,
    }
}

fn short(history: &History) -> Vec<(u64, &'static str)> {
    let outcome = |entry: &Entry| match &entry.outcome {
        Outcome::UnderWay => "under way",
        Outcome::Done(_) => "done",
        Outcome::Superseded => "superseded",
    };
    history
        .entries()
        .map(|entry| (entry.generation.0, outcome(entry)))
        .collect()
}

fn history_of(announcements: &[Announcement]) -> History {
    let mut history = History::new(UnixNanos(1));
    for announcement in announcements {
        history.note(announcement, UnixNanos(7));
    }
    history
}

#[test]
fn a_restart_is_there_when_it_begins_and_is_completed_by_its_end() {
    let history = history_of(&[begun(Scope::Group, 1, 0)]);
    assert_eq!(short(&history), [(1, "under way")]);
    let history = history_of(&[begun(Scope::Group, 1, 0), done(Scope::Group, 1)]);
    assert_eq!(short(&history), [(1, "done")]);
    let entry = history.entries().next().unwrap();
    assert_eq!(
        (entry.begun, entry.level),
        (UnixNanos(4), Some(RestartLevel::Process))
    );
}

#[test]
fn a_restart_that_another_one_interrupts_is_superseded() {
    let recreating = Announcement::Recreating {
        generation: Generation(2),
        cause: cause(0),
    };
    let history = history_of(&[begun(Scope::Group, 1, 0), recreating, done(Scope::Group, 2)]);
    assert_eq!(short(&history), [(2, "done"), (1, "superseded")]);
    let mut history = history_of(&[begun(Scope::Group, 1, 0)]);
    history.supersede();
    assert_eq!(short(&history), [(1, "superseded")]);
}

#[test]
fn restarts_of_different_workers_are_kept_apart() {
    let history = history_of(&[
        begun(Scope::Worker, 1, 0),
        begun(Scope::Worker, 2, 1),
        done(Scope::Worker, 1),
    ]);
    assert_eq!(short(&history), [(2, "under way"), (1, "done")]);
    let history = history_of(&[
        begun(Scope::Worker, 1, 0),
        begun(Scope::Worker, 2, 0),
        begun(Scope::Group, 3, 1),
    ]);
    assert_eq!(
        short(&history),
        [(3, "under way"), (2, "superseded"), (1, "superseded")]
    );
}

#[test]
fn a_restart_that_a_former_leader_began_is_recorded_when_it_ends() {
    assert_eq!(short(&history_of(&[done(Scope::Group, 8)])), [(8, "done")]);
}

#[test]
fn only_the_newest_are_kept() {
    let announcements: Vec<_> = (1..=40)
        .map(|generation| begun(Scope::Group, generation, 0))
        .collect();
    let history = history_of(&announcements);
    let kept = short(&history);
    assert_eq!(kept.len(), 32);
    assert_eq!((kept[0], kept[31]), ((40, "under way"), (9, "superseded")));
}
