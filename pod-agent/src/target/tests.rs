use super::*;

mod random;

/// A machine with its clock.
struct Bench {
    machine: Machine,
    now: Duration,
}

impl Bench {
    fn fresh() -> Self {
        Self {
            machine: Machine::new(at(Duration::ZERO)),
            now: Duration::ZERO,
        }
    }

    /// Running at `generation`.
    fn running(generation: u64) -> Self {
        let mut bench = Self::fresh();
        bench.step(Input::Target(Target {
            start_fresh: true,
            ..released(generation)
        }));
        bench.step(Input::Started);
        assert_eq!(bench.state(), (Phase::Running, generation));
        bench
    }

    /// Parked after it has run.
    fn parked(generation: u64) -> Self {
        let mut bench = Self::stopping(generation);
        bench.step(Input::WorkerExited(Exit::Signal(15)));
        bench.step(Input::TreeEmpty);
        assert_eq!(bench.state(), (Phase::Parked, generation));
        bench
    }

    /// Parked before it has ever run.
    fn waiting(generation: u64) -> Self {
        let mut bench = Self::fresh();
        bench.step(Input::Target(stopped(generation)));
        assert_eq!(bench.state(), (Phase::Parked, generation));
        bench
    }

    fn exited(generation: u64, code: i32) -> Self {
        let mut bench = Self::running(generation);
        bench.step(Input::WorkerExited(Exit::Code(code)));
        bench.step(Input::TreeEmpty);
        assert_eq!(bench.state(), (Phase::Exited(Exit::Code(code)), generation));
        bench
    }

    fn stopping(generation: u64) -> Self {
        let mut bench = Self::running(generation - 1);
        bench.step(Input::Target(stopped(generation)));
        assert_eq!(bench.state(), (Phase::Stopping, generation));
        bench
    }

    fn step(&mut self, input: Input) -> Vec<Action> {
        self.machine.step(at(self.now), input)
    }

    /// All but the log lines.
    fn acts(&mut self, input: Input) -> Vec<Action> {
        self.step(input)
            .into_iter()
            .filter(|action| !matches!(action, Action::Say(_)))
            .collect()
    }

    fn tick(&mut self, millis: u64) -> Vec<Action> {
        self.now += Duration::from_millis(millis);
        self.step(Input::Tick)
    }

    fn state(&self) -> (Phase, u64) {
        (self.machine.status().phase, self.machine.status().generation)
    }
}

fn at(mono: Duration) -> Moment {
    Moment {
        mono,
        unix_nanos: 1_000_000 + i64::try_from(mono.as_nanos()).expect("short test"),
    }
}

fn stopped(generation: u64) -> Target {
    Target {
        epoch: 1,
        generation,
        grace: Duration::from_secs(5),
        ..Target::default()
    }
}

fn released(generation: u64) -> Target {
    Target {
        release: true,
        ..stopped(generation)
    }
}

fn signal(signo: i32) -> Input {
    Input::Signal {
        signo,
        outside: false,
    }
}

fn exit(code: i32) -> Input {
    Input::WorkerExited(Exit::Code(code))
}

const START_3: [Action; 2] = [Action::Report, Action::Start { generation: 3 }];

#[test]
fn starts_only_when_released() {
    type Case = (
        &'static str,
        fn() -> Bench,
        Target,
        &'static [Action],
        (Phase, u64),
    );
    let cases: &[Case] = &[
        (
            "fresh and named",
            Bench::fresh,
            Target {
                start_fresh: true,
                ..released(3)
            },
            &START_3,
            (Phase::Starting, 3),
        ),
        (
            "fresh, not named",
            Bench::fresh,
            released(3),
            &[Action::Report],
            (Phase::Fresh, 0),
        ),
        (
            "fresh, named, not released",
            Bench::fresh,
            Target {
                start_fresh: true,
                ..stopped(3)
            },
            &[Action::Report],
            (Phase::Parked, 3),
        ),
        (
            "fresh, to be parked",
            Bench::fresh,
            stopped(3),
            &[Action::Report],
            (Phase::Parked, 3),
        ),
        (
            "fresh, the very first generation",
            Bench::fresh,
            stopped(0),
            &[Action::Report],
            (Phase::Fresh, 0),
        ),
        (
            "parked there",
            || Bench::parked(3),
            released(3),
            &START_3,
            (Phase::Starting, 3),
        ),
        (
            "parked there, still to wait",
            || Bench::parked(3),
            stopped(3),
            &[],
            (Phase::Parked, 3),
        ),
        (
            "parked below",
            || Bench::parked(2),
            released(3),
            &START_3,
            (Phase::Starting, 3),
        ),
        (
            "parked below, not released",
            || Bench::parked(2),
            stopped(3),
            &[Action::Report],
            (Phase::Parked, 3),
        ),
        (
            "parked above",
            || Bench::parked(4),
            released(3),
            &[Action::Report],
            (Phase::Parked, 4),
        ),
        (
            "running it",
            || Bench::running(3),
            released(3),
            &[],
            (Phase::Running, 3),
        ),
        (
            "running it, not released",
            || Bench::running(3),
            stopped(3),
            &[],
            (Phase::Running, 3),
        ),
        (
            "running above",
            || Bench::running(4),
            stopped(3),
            &[Action::Report],
            (Phase::Running, 4),
        ),
        (
            "running below",
            || Bench::running(2),
            stopped(3),
            &[Action::Report, Action::Terminate],
            (Phase::Stopping, 3),
        ),
        (
            "failed there",
            || Bench::exited(3, 1),
            released(3),
            &[],
            (Phase::Exited(Exit::Code(1)), 3),
        ),
        (
            "failed there, named",
            || Bench::exited(3, 1),
            Target {
                start_fresh: true,
                ..released(3)
            },
            &[],
            (Phase::Exited(Exit::Code(1)), 3),
        ),
        (
            "parked there, never run, and not named",
            || Bench::waiting(3),
            released(3),
            &[],
            (Phase::Parked, 3),
        ),
        (
            "parked below, never run, and not named",
            || Bench::waiting(2),
            released(3),
            &[Action::Report],
            (Phase::Parked, 3),
        ),
        (
            "parked there, never run, and named",
            || Bench::waiting(3),
            Target {
                start_fresh: true,
                ..released(3)
            },
            &START_3,
            (Phase::Starting, 3),
        ),
        (
            "failed below",
            || Bench::exited(2, 1),
            released(3),
            &START_3,
            (Phase::Starting, 3),
        ),
        (
            "failed below, not released",
            || Bench::exited(2, 1),
            stopped(3),
            &[Action::Report],
            (Phase::Parked, 3),
        ),
    ];
    for (name, bench, target, actions, state) in cases {
        let mut bench = bench();
        assert_eq!(bench.acts(Input::Target(target.clone())), *actions, "{name}");
        assert_eq!(bench.state(), *state, "{name}");
    }
}

#[test]
fn an_older_epoch_is_answered_not_obeyed() {
    let mut bench = Bench::parked(3);
    bench.step(Input::Target(Target {
        epoch: 7,
        ..stopped(3)
    }));
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 6,
            ..released(3)
        })),
        [Action::Report]
    );
    assert_eq!(bench.state(), (Phase::Parked, 3));
    assert_eq!(bench.machine.status().epoch, 7);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 7,
            ..released(3)
        })),
        START_3
    );
}

#[test]
fn a_higher_epoch_is_remembered_even_where_its_order_is_behind() {
    let mut bench = Bench::running(3);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 9,
            ..stopped(2)
        })),
        [Action::Report]
    );
    assert_eq!(bench.machine.status().epoch, 9);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 8,
            ..stopped(4)
        })),
        [Action::Report]
    );
    assert_eq!(bench.state(), (Phase::Running, 3));
}

#[test]
fn stopping_kills_after_the_grace_and_parks_when_nothing_is_left() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.machine.deadline(), Some(Duration::from_secs(5)));
    assert_eq!(bench.acts(exit(0)), [], "an exit after the signal says nothing");
    assert!(bench.machine.awaits_empty());
    assert_eq!(bench.tick(4_999), []);
    let actions = bench.tick(1);
    assert!(
        matches!(&actions[..], [Action::Say(_), Action::Kill { all: false }]),
        "{actions:?}"
    );
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 3));
    assert!(!bench.machine.awaits_empty());
}

#[test]
fn without_grace_it_kills_at_once() {
    let mut bench = Bench::running(2);
    let actions = bench.acts(Input::Target(Target {
        grace: Duration::ZERO,
        ..stopped(3)
    }));
    assert_eq!(actions, [Action::Report, Action::Kill { all: false }]);
}

#[test]
fn newer_orders_while_stopping_raise_the_generation_and_change_nothing_else() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.acts(Input::Target(stopped(5))), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Stopping, 5));
    assert_eq!(bench.machine.deadline(), Some(Duration::from_secs(5)));
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 5));
}

#[test]
fn a_release_that_came_while_stopping_starts_at_once() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.acts(Input::Target(released(3))), []);
    assert_eq!(bench.acts(Input::TreeEmpty), START_3);
}

#[test]
fn a_failure_is_reported_and_its_leftovers_are_killed() {
    let mut bench = Bench::running(3);
    assert_eq!(bench.acts(exit(1)), [Action::Report, Action::Kill { all: false }]);
    assert_eq!(bench.machine.status().detail, "worker exited with code 1");
    // They are still there when the restart comes: no parking before they are gone.
    assert_eq!(bench.acts(Input::Target(released(4))), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Stopping, 4));
    assert_eq!(
        bench.acts(Input::TreeEmpty),
        [Action::Report, Action::Start { generation: 4 }]
    );
}

#[test]
fn exit_zero_is_done() {
    let mut bench = Bench::running(3);
    assert_eq!(
        bench.acts(exit(0)),
        [Action::Report, Action::Exit { code: 0, flush: true }]
    );
    assert_eq!(bench.state(), (Phase::Done, 3));
    assert_eq!(bench.step(Input::Target(released(4))), [], "it is over");
}

#[test]
fn terminal_codes_end_the_container() {
    let named = |negated, codes: &[i32]| {
        vec![Codes {
            negated,
            codes: codes.to_vec(),
        }]
    };
    let cases = [
        (named(false, &[42]), Exit::Code(42), true),
        (named(false, &[42]), Exit::Code(41), false),
        (named(false, &[137]), Exit::Signal(9), true),
        (named(true, &[42]), Exit::Code(42), false),
        (named(true, &[42]), Exit::Code(1), true),
        (named(true, &[]), Exit::Code(1), true),
        (
            [named(false, &[1]), named(false, &[2])].concat(),
            Exit::Code(2),
            true,
        ),
        (vec![], Exit::Code(1), false),
    ];
    for (terminal, exit, ends) in cases {
        let mut bench = Bench::running(3);
        bench.step(Input::Target(Target {
            terminal: terminal.clone(),
            ..released(3)
        }));
        let actions = bench.acts(Input::WorkerExited(exit));
        let expected = if ends {
            Action::Exit {
                code: exit.code(),
                flush: true,
            }
        } else {
            Action::Kill { all: false }
        };
        assert_eq!(actions, [Action::Report, expected], "{terminal:?} {exit:?}");
        assert_eq!(bench.state(), (Phase::Exited(exit), 3));
    }
    // Exit 0 is Done, whatever the codes.
    let mut bench = Bench::running(3);
    bench.step(Input::Target(Target {
        terminal: named(true, &[42]),
        ..released(3)
    }));
    assert_eq!(
        bench.acts(exit(0)),
        [Action::Report, Action::Exit { code: 0, flush: true }]
    );
}

#[test]
fn a_worker_that_cannot_start_counts_as_one_that_failed() {
    let mut bench = Bench::parked(3);
    bench.step(Input::Target(released(3)));
    let failure = Input::StartFailed {
        code: 127,
        detail: "cannot start \"x\"".into(),
    };
    assert_eq!(bench.acts(failure), [Action::Report, Action::Kill { all: false }]);
    assert_eq!(bench.state(), (Phase::Exited(Exit::Code(127)), 3));
    assert_eq!(bench.machine.status().detail, "cannot start \"x\"");
    assert_eq!(bench.acts(Input::Target(released(3))), []);
}

#[test]
fn told_to_go_without_a_worker() {
    type Named = (&'static str, fn() -> Bench);
    let benches: [Named; 3] = [
        ("fresh", Bench::fresh),
        ("parked", || Bench::parked(3)),
        ("exited", || Bench::exited(3, 1)),
    ];
    let cases = [
        (libc::SIGTERM, false, Some(143)),
        (libc::SIGINT, false, Some(130)),
        (libc::SIGQUIT, false, Some(131)),
        (libc::SIGUSR1, false, None),
        (libc::SIGUSR1, true, Some(138)),
        (libc::SIGWINCH, false, None),
        (libc::SIGCONT, true, None),
    ];
    for (name, bench) in benches {
        for (signo, outside, code) in cases {
            let actions = bench().acts(Input::Signal { signo, outside });
            let expected: Vec<_> = code
                .map(|code| Action::Exit { code, flush: false })
                .into_iter()
                .collect();
            assert_eq!(actions, expected, "{name}, signal {signo}, outside: {outside}");
        }
    }
}

#[test]
fn told_to_go_with_a_worker() {
    for (end, code) in [(Exit::Code(0), 0), (Exit::Code(3), 3), (Exit::Signal(15), 143)] {
        let mut bench = Bench::running(3);
        assert_eq!(
            bench.acts(signal(libc::SIGTERM)),
            [Action::Report, Action::Forward(libc::SIGTERM)]
        );
        assert_eq!(
            bench.acts(Input::Target(released(4))),
            [Action::Report],
            "no order shortens its time"
        );
        assert_eq!(bench.state(), (Phase::Running, 3));
        let last = bench.acts(Input::WorkerExited(end)).pop();
        assert_eq!(last, Some(Action::Exit { code, flush: false }));
        assert_ne!(
            bench.state().0,
            Phase::Done,
            "the Job decides what an exit at deletion means"
        );
    }
}

#[test]
fn other_signals_are_passed_on_and_change_nothing() {
    for signo in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGUSR1,
        libc::SIGWINCH,
        libc::SIGRTMIN() + 3,
    ] {
        let mut bench = Bench::running(3);
        assert_eq!(bench.acts(signal(signo)), [Action::Forward(signo)]);
        assert_eq!(bench.acts(exit(1)), [Action::Report, Action::Kill { all: false }]);
    }
}

#[test]
fn an_agent_that_was_stopped_goes_on() {
    let mut bench = Bench::running(3);
    let signo = libc::SIGCONT;
    assert_eq!(
        bench.acts(Input::Signal { signo, outside: true }),
        [Action::Forward(signo)]
    );
    bench.acts(Input::Target(released(4)));
    assert_eq!(bench.state(), (Phase::Stopping, 4), "orders are obeyed");
}

#[test]
fn any_signal_of_the_runtime_is_the_stop_signal() {
    let mut bench = Bench::running(3);
    let signo = libc::SIGUSR2;
    assert_eq!(
        bench.acts(Input::Signal { signo, outside: true }),
        [Action::Report, Action::Forward(signo)]
    );
    assert_eq!(
        bench.acts(exit(4)),
        [Action::Exit {
            code: 4,
            flush: false
        }]
    );
}

#[test]
fn told_to_go_while_stopping() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.acts(signal(libc::SIGTERM)), [Action::Report]);
    assert_eq!(bench.acts(Input::Target(released(3))), [Action::Report]);
    assert_eq!(bench.acts(exit(0)), []);
    assert_eq!(
        bench.acts(Input::TreeEmpty),
        [Action::Exit {
            code: 143,
            flush: false
        }]
    );
}

#[test]
fn what_may_not_be_killed_is_reported_until_it_is_gone() {
    let mut bench = Bench::stopping(3);
    bench.tick(5_000);
    let report = KillReport {
        denied: true,
        note: "not permitted to kill pid 7".into(),
        ..Default::default()
    };
    assert_eq!(bench.acts(Input::Killed(report)), [Action::Report]);
    let status = bench.machine.status();
    assert!(status.needs_host_kill);
    assert_eq!(status.detail, "not permitted to kill pid 7");
    for _ in 0..50 {
        let deadline = bench.machine.deadline().expect("keeps trying");
        assert!(deadline <= bench.now + Duration::from_millis(100));
        bench.now = deadline;
        assert_eq!(bench.acts(Input::Tick), [Action::Kill { all: false }]);
    }
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 3));
    let status = bench.machine.status();
    assert!(!status.needs_host_kill);
    assert_eq!(status.detail, "");
}

#[test]
fn what_outlives_sigkill_is_reported() {
    for forking in [false, true] {
        let mut bench = Bench::stopping(3);
        bench.tick(5_000);
        let report = KillReport {
            forking,
            note: "pid 7 (x, D)".into(),
            denied: false,
        };
        assert_eq!(bench.acts(Input::Killed(report)), []);
        let actions = bench.tick(999);
        assert_eq!(actions, [Action::Kill { all: false }]);
        bench.now = bench.machine.deadline().expect("keeps trying");
        let actions = bench.step(Input::Tick);
        let [Action::Report, Action::Kill { all }, Action::Say(_)] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(
            *all, forking,
            "only a tree that forks on costs the sessions of kubectl exec"
        );
        let status = bench.machine.status();
        assert!(
            status.needs_host_kill && status.detail.contains("pid 7"),
            "{status:?}"
        );
    }
}

#[test]
fn a_long_wait_is_said_once() {
    let mut bench = Bench::fresh();
    assert!(matches!(&bench.tick(1_000)[..], [Action::Say(text)] if text.contains("first release")));
    assert_eq!(bench.machine.deadline(), None);

    bench.step(Input::Target(stopped(3)));
    assert_eq!(bench.tick(500), []);
    bench.step(Input::Target(Target {
        epoch: 2,
        ..stopped(3)
    }));
    let text = "waiting for release of generation 3".to_owned();
    assert_eq!(bench.tick(500), [Action::Say(text)]);
    bench.step(Input::Target(Target {
        epoch: 3,
        ..stopped(3)
    }));
    assert_eq!(bench.machine.deadline(), None);

    bench.step(Input::Target(stopped(4)));
    assert_eq!(bench.machine.deadline(), None, "an order of an old epoch");
    bench.step(Input::Target(Target {
        epoch: 3,
        start_fresh: true,
        ..released(4)
    }));
    assert_eq!(bench.machine.deadline(), None, "a short wait is not worth a line");
}

#[test]
fn revision_and_times() {
    let mut bench = Bench::fresh();
    assert_eq!(bench.machine.status().revision, 1);
    bench.now = Duration::from_millis(5);
    bench.step(Input::Target(Target {
        start_fresh: true,
        counter: 2,
        ..released(0)
    }));
    bench.step(Input::Started);
    let entered = bench.machine.status().clone();
    assert_eq!((entered.revision, entered.counter), (3, 2));
    assert_eq!(entered.since_unix_nanos, at(bench.now).unix_nanos);

    bench.now = Duration::from_millis(9);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 5,
            counter: 1,
            ..released(0)
        })),
        [Action::Report]
    );
    let later = bench.machine.status().clone();
    assert_eq!((later.revision, later.counter, later.epoch), (4, 2, 5));
    assert_eq!(
        later.since_unix_nanos, entered.since_unix_nanos,
        "still the same run"
    );
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: 5,
            ..released(0)
        })),
        [],
        "nothing new"
    );
    assert_eq!(bench.machine.status().revision, 4);
}

/// Running at generation 0, with a heartbeat at least every second.
fn watched() -> Bench {
    let mut bench = Bench::fresh();
    bench.step(Input::Target(Target {
        start_fresh: true,
        heartbeat_timeout: Duration::from_secs(1),
        ..released(0)
    }));
    bench.step(Input::Started);
    bench
}

#[test]
fn a_missed_heartbeat_is_reported_and_nothing_else() {
    let mut bench = watched();
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Awaited);
    bench.step(Input::Heartbeat(Heartbeat::Well));
    let running_since = bench.machine.status().since_unix_nanos;
    bench.now += Duration::from_secs(2);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Missed)), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Running, 0));
    let status = bench.machine.status().clone();
    assert_eq!(status.heartbeat, Heartbeat::Missed);
    assert!(status.since_unix_nanos > running_since);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Missed)), []);

    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Well)), [Action::Report]);
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_worker_that_does_not_run_has_no_heartbeat() {
    let mut bench = watched();
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::from_secs(1));
    bench.step(Input::Target(stopped(1)));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::ZERO);
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_heartbeat_that_is_asked_for_no_more_is_not_missed() {
    let mut bench = watched();
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    bench.step(Input::Target(released(0)));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_worker_that_was_told_to_go_has_other_things_to_do_than_to_give_heartbeats() {
    let mut bench = watched();
    bench.step(signal(libc::SIGTERM));
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::ZERO);
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}
