//! Calls of a launcher: when a standby may be released for one, and when the caller runs the
//! program itself.

use super::*;
use crate::machine::calls::{CONFIRM, RankRelease, RankStandby, may_be_answered};

#[test]
fn calls_are_served_from_the_start_of_the_worker_until_it_is_stopped() {
    let mut bench = Bench::fresh();
    assert!(!bench.machine.serves_calls());
    bench.step(Input::Target(Target {
        start_fresh: true,
        ..released(3)
    }));
    assert!(bench.machine.serves_calls());
    bench.step(Input::Started);
    assert!(bench.machine.serves_calls());
    bench.step(Input::Target(stopped(4)));
    assert!(!bench.machine.serves_calls(), "it is being stopped");
    bench.step(Input::TreeEmpty);
    assert!(!bench.machine.serves_calls(), "it is parked");
    bench.step(Input::Target(released(4)));
    assert!(bench.machine.serves_calls());
}

#[test]
fn the_calls_of_a_worker_that_has_failed_are_not_served() {
    let mut bench = Bench::running(3);
    bench.step(Input::WorkerExited(Exit::Code(1)));
    assert!(!bench.machine.serves_calls());
}

#[test]
fn no_call_is_answered_beside_a_rank_that_was_given_up() {
    assert!(may_be_answered(0));
    assert!(!may_be_answered(1));
}

#[test]
fn only_a_standby_that_is_ready_and_stays_may_go_on() {
    assert!(RankStandby::Ready.may_go_on());
    assert!(!RankStandby::Imports.may_go_on());
    assert!(!RankStandby::Ending.may_go_on());
}

#[test]
fn a_caller_runs_the_program_itself_only_once_its_standby_has_ended() {
    let start = Duration::from_secs(100);
    let mut release = RankRelease::at(start);
    assert_eq!(release.deadline(), Some(start + CONFIRM));
    assert!(!release.gives_up(start + CONFIRM - Duration::from_millis(1)));
    assert!(!release.is_refused());
    assert!(release.gives_up(start + CONFIRM));
    assert!(!release.gives_up(start + CONFIRM), "one kill is enough");
    assert_eq!(release.deadline(), None);
    assert!(!release.is_refused(), "it was killed, and may still run");
    release.has_ended();
    assert!(release.is_refused());
}
