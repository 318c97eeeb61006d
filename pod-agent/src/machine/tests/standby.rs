//! Starts from a standby, and when one is started ahead.

use super::*;
use crate::machine::standby::{CONFIRM, SETTLED};

const AHEAD: Duration = Duration::from_millis(1500);

/// Running at generation 3, and able to have standbys.
fn running() -> Bench {
    running_as(Machine::with_standby)
}

/// Running at generation 3, as this kind of agent.
fn running_as(kind: fn(Machine) -> Machine) -> Bench {
    let mut bench = Bench::fresh();
    bench.machine = kind(bench.machine);
    bench.step(Input::Target(Target {
        start_fresh: true,
        ..released(3)
    }));
    bench.step(Input::Started);
    bench
}

/// The same once a standby is ready.
fn ready() -> Bench {
    let mut bench = running();
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
    bench.step(Input::StandbyReady { ahead: AHEAD });
    bench
}

/// Ends the worker, and releases generation 4. Returns what is done then.
fn restart(bench: &mut Bench) -> Vec<Action> {
    bench.step(Input::WorkerExited(Exit::Signal(9)));
    bench.step(Input::TreeEmpty);
    bench.step(Input::Target(stopped(4)));
    bench.acts(Input::Target(released(4)))
}

fn start(source: Source) -> Action {
    Action::Start {
        generation: Generation(4),
        source,
    }
}

fn starts(bench: &Bench) -> (u32, u32, Duration) {
    let starts = bench.machine.status().starts.expect("a start");
    (starts.standby, starts.cold, starts.ahead)
}

#[test]
fn without_standbys_nothing_is_started_ahead() {
    let mut bench = Bench::running(3);
    bench.now += SETTLED * 2;
    assert_eq!(bench.acts(Input::Tick), []);
    assert_eq!(bench.machine.status().starts, None);
    assert_eq!(restart(&mut bench), [Action::Report, start(Source::Cold)]);
}

#[test]
fn a_standby_is_started_once_the_worker_has_run_for_a_while() {
    let mut bench = running();
    bench.now += SETTLED / 2;
    assert_eq!(bench.acts(Input::Tick), []);
    bench.now += SETTLED / 2;
    assert!(bench.machine.deadline().is_some_and(|at| at <= bench.now));
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
    bench.now += SETTLED * 2;
    assert_eq!(bench.acts(Input::Tick), [], "one is enough");
}

#[test]
fn the_first_heartbeat_is_earlier_evidence() {
    let mut bench = Bench::fresh();
    bench.machine = bench.machine.with_standby();
    bench.step(Input::Target(Target {
        start_fresh: true,
        heartbeat_timeout: Duration::from_secs(60),
        ..released(3)
    }));
    bench.step(Input::Started);
    bench.now += SETTLED * 2;
    assert_eq!(bench.acts(Input::Tick), []);
    bench.step(Input::Heartbeat(Heartbeat::Well));
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
}

#[test]
fn the_next_attempt_begins_from_a_standby_that_is_ready() {
    let mut bench = ready();
    assert_eq!(starts(&bench), (0, 1, Duration::ZERO));
    assert_eq!(restart(&mut bench), [Action::Report, start(Source::Standby)]);
    assert_eq!(starts(&bench), (1, 0, AHEAD));
    bench.step(Input::Started);
    assert_eq!(bench.state(), (Phase::Running, 4));
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
}

#[test]
fn one_that_still_imports_stays_for_the_attempt_after() {
    let mut bench = running();
    bench.now += SETTLED;
    bench.step(Input::Tick);
    assert_eq!(restart(&mut bench), [Action::Report, start(Source::Cold)]);
    bench.step(Input::Started);
    bench.step(Input::StandbyReady { ahead: AHEAD });
    bench.now += SETTLED * 2;
    assert_eq!(bench.acts(Input::Tick), []);
    bench.step(Input::WorkerExited(Exit::Code(1)));
    bench.step(Input::TreeEmpty);
    bench.step(Input::Target(stopped(5)));
    let actions = bench.acts(Input::Target(released(5)));
    let source = Source::Standby;
    let generation = Generation(5);
    assert_eq!(actions, [Action::Report, Action::Start { generation, source }]);
}

#[test]
fn a_refusal_is_followed_by_one_cold_start() {
    let mut bench = ready();
    restart(&mut bench);
    let refused = Input::StandbyRefused(Exit::Code(121));
    assert_eq!(bench.acts(refused.clone()), [Action::Report, start(Source::Cold)]);
    assert_eq!(starts(&bench), (0, 1, Duration::ZERO));
    assert_eq!(bench.acts(refused), []);
    bench.step(Input::Started);
    assert_eq!(bench.state(), (Phase::Running, 4));
}

#[test]
fn a_refusal_is_made_up_for_although_the_order_has_changed() {
    let mut bench = ready();
    restart(&mut bench);
    assert_eq!(bench.acts(Input::Target(stopped(4))), []);
    let refused = Input::StandbyRefused(Exit::Code(121));
    assert_eq!(bench.acts(refused), [Action::Report, start(Source::Cold)]);
}

#[test]
fn one_that_does_not_confirm_is_ended_before_the_cold_start() {
    let mut bench = ready();
    restart(&mut bench);
    bench.now += CONFIRM;
    assert_eq!(bench.acts(Input::Tick), [Action::GiveUpStandby]);
    assert_eq!(bench.acts(Input::Tick), []);
    let refused = Input::StandbyRefused(Exit::Signal(9));
    assert_eq!(bench.acts(refused), [Action::Report, start(Source::Cold)]);
}

#[test]
fn a_stop_that_overtakes_the_confirmation_starts_nothing() {
    let mut bench = ready();
    restart(&mut bench);
    bench.step(Input::Target(stopped(5)));
    assert_eq!(bench.state(), (Phase::Stopping, 5));
    assert_eq!(bench.acts(Input::StandbyRefused(Exit::Signal(9))), []);
    bench.step(Input::TreeEmpty);
    assert_eq!(bench.state(), (Phase::Parked, 5));
    let cold = Action::Start {
        generation: Generation(5),
        source: Source::Cold,
    };
    assert_eq!(bench.acts(Input::Target(released(5))), [Action::Report, cold]);
}

#[test]
fn a_standby_that_ends_is_followed_by_another_after_growing_waits() {
    let mut bench = ready();
    for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
        bench.step(Input::StandbyGone { hopeless: false });
        bench.now += Duration::from_secs(wait) - Duration::from_millis(1);
        assert_eq!(bench.acts(Input::Tick), [], "{wait}");
        bench.now += Duration::from_millis(1);
        assert_eq!(bench.acts(Input::Tick), [Action::Warm], "{wait}");
    }
    bench.step(Input::StandbyGone { hopeless: true });
    bench.now += Duration::from_secs(10_000);
    assert_eq!(bench.acts(Input::Tick), []);
    assert_eq!(restart(&mut bench), [Action::Report, start(Source::Cold)]);
    assert_eq!(starts(&bench), (0, 1, Duration::ZERO));
}

#[test]
fn restarts_do_not_prolong_the_wait() {
    let mut bench = ready();
    for _ in 0..5 {
        bench.step(Input::StandbyGone { hopeless: false });
        bench.now += Duration::from_secs(600);
        assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
    }
    bench.step(Input::StandbyGone { hopeless: false });
    bench.now += Duration::from_secs(600);
    restart(&mut bench);
    bench.step(Input::Started);
    assert_eq!(bench.acts(Input::Tick), [], "the worker is not up yet");
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
}

#[test]
fn a_container_that_ends_ends_its_standbys_first() {
    let mut bench = ready();
    let term = Input::Signal {
        signo: libc::SIGTERM,
        outside: true,
    };
    let actions = bench.acts(term);
    let forward = Action::Forward(libc::SIGTERM);
    assert_eq!(actions, [Action::Report, forward, Action::EndStandbys]);
    bench.step(Input::StandbyGone { hopeless: false });
    bench.now += SETTLED * 100;
    assert!(!bench.acts(Input::Tick).contains(&Action::Warm));

    let mut bench = ready();
    let actions = bench.acts(Input::WorkerExited(Exit::Code(0)));
    assert!(actions.contains(&Action::EndStandbys));
}

#[test]
fn a_worker_that_takes_its_time_to_exit_gets_no_standby() {
    let mut bench = ready();
    restart(&mut bench);
    bench.step(Input::Signal {
        signo: libc::SIGTERM,
        outside: true,
    });
    bench.step(Input::Started);
    assert_eq!(bench.state(), (Phase::Running, 4));
    bench.now += SETTLED * 2;
    assert!(!bench.acts(Input::Tick).contains(&Action::Warm));
}

#[test]
fn a_signal_that_ends_a_released_standby_ends_the_container() {
    // Even code 0 is no success of the worker.
    for how in [Exit::Signal(15), Exit::Code(0)] {
        let mut bench = ready();
        restart(&mut bench);
        bench.step(Input::Signal {
            signo: libc::SIGTERM,
            outside: true,
        });
        let actions = bench.acts(Input::StandbyRefused(how));
        let exit = Action::Exit {
            code: 143,
            flush: false,
        };
        assert!(actions.contains(&exit), "{actions:?}");
    }
}

#[test]
fn a_container_that_ends_starts_no_standby_once_its_worker_has_confirmed() {
    let mut bench = ready();
    restart(&mut bench);
    bench.step(Input::Signal {
        signo: libc::SIGTERM,
        outside: true,
    });
    bench.step(Input::Started);
    bench.now += SETTLED * 2;
    assert_eq!(bench.acts(Input::Tick), []);
}

#[test]
fn what_the_daemon_was_asked_to_kill_is_not_released() {
    let mut bench = ready();
    bench.step(Input::WorkerExited(Exit::Signal(9)));
    let denied = KillReport {
        denied: true,
        ..KillReport::default()
    };
    let actions = bench.acts(Input::Killed(denied.clone()));
    assert_eq!(actions, [Action::Report, Action::EndStandbys]);
    // Those of ranks may have been started since.
    assert_eq!(bench.acts(Input::Killed(denied)), [Action::EndStandbys]);
    bench.step(Input::TreeEmpty);
    bench.step(Input::Target(stopped(4)));
    let actions = bench.acts(Input::Target(released(4)));
    assert_eq!(actions, [Action::Report, start(Source::Cold)]);
    bench.step(Input::Started);
    bench.step(Input::StandbyGone { hopeless: false });
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
}

#[test]
fn what_waits_and_what_the_worker_starts_are_reported() {
    let mut bench = running();
    let summary = Standbys {
        wanted: 1,
        ..Standbys::default()
    };
    assert_eq!(bench.acts(Input::Standbys(summary.clone())), [Action::Report]);
    assert_eq!(bench.machine.status().standbys, Some(summary.clone()));
    assert_eq!(bench.acts(Input::Standbys(summary)), []);
    let ahead = AHEAD;
    bench.step(Input::RankStarted {
        source: Source::Standby,
        ahead,
    });
    assert_eq!(starts(&bench), (1, 1, AHEAD));
}

/// A script itself is started cold each time. What it starts through the agent counts.
#[test]
fn a_worker_that_only_starts_others_asks_for_their_standbys_once_in_each_attempt() {
    let mut bench = running_as(Machine::with_standbys_of_ranks);
    assert_eq!(starts(&bench), (0, 0, Duration::ZERO));
    for _ in 0..2 {
        bench.now += SETTLED;
        assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
        bench.now += SETTLED;
        assert_eq!(bench.acts(Input::Tick), []);
        bench.step(Input::RankStarted {
            source: Source::Standby,
            ahead: AHEAD,
        });
        assert_eq!(starts(&bench), (1, 0, AHEAD));
        let generation = bench.machine.status().generation.0 + 1;
        bench.step(Input::WorkerExited(Exit::Signal(9)));
        bench.step(Input::TreeEmpty);
        bench.step(Input::Target(stopped(generation)));
        let acts = bench.acts(Input::Target(released(generation)));
        let cold = Action::Start {
            generation: Generation(generation),
            source: Source::Cold,
        };
        assert!(acts.contains(&cold), "{acts:?}");
        assert_eq!(starts(&bench), (0, 0, Duration::ZERO));
        bench.step(Input::Started);
    }
}

/// Those of ranks go on without it.
#[test]
fn a_container_that_ends_ends_standbys_of_ranks_when_the_workers_own_is_hopeless() {
    let mut bench = ready();
    bench.step(Input::StandbyGone { hopeless: true });
    bench.now += SETTLED * 100;
    assert_eq!(bench.acts(Input::Tick), []);
    assert_eq!(restart(&mut bench), [Action::Report, start(Source::Cold)]);
    bench.step(Input::Started);
    let actions = bench.acts(Input::WorkerExited(Exit::Code(0)));
    assert!(actions.contains(&Action::EndStandbys), "{actions:?}");
}

#[test]
fn a_script_that_stays_asks_for_standbys_again() {
    let mut bench = running_as(|machine| {
        let grace = Some(Duration::from_secs(30));
        machine.with_standbys_of_ranks().with_termination_grace(grace)
    });
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
    let term = Input::Signal {
        signo: libc::SIGTERM,
        outside: true,
    };
    assert!(bench.acts(term).contains(&Action::EndStandbys));
    bench.now += Duration::from_secs(7200);
    assert!(!bench.acts(Input::Tick).contains(&Action::Warm));
    bench.now += SETTLED;
    assert_eq!(bench.acts(Input::Tick), [Action::Warm]);
}
