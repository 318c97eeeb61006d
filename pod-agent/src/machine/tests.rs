use super::*;

mod calls;
mod heartbeat;
mod leaving;
mod random;
mod standby;
mod stopping;

/// What the machine's clock showed when the agent started.
const BOOTED: u64 = 7_000_000_000;

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
        (self.machine.status().phase, self.machine.status().generation.0)
    }
}

fn at(mono: Duration) -> Moment {
    Moment {
        mono,
        unix: UnixNanos(1_000_000 + i64::try_from(mono.as_nanos()).expect("short test")),
        boot: BootNanos(BOOTED + u64::try_from(mono.as_nanos()).expect("short test")),
    }
}

fn stopped(generation: u64) -> Target {
    Target {
        epoch: Epoch(1),
        generation: Generation(generation),
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

const START_3: [Action; 2] = [
    Action::Report,
    Action::Start {
        generation: Generation(3),
        source: Source::Cold,
    },
];

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
        epoch: Epoch(7),
        ..stopped(3)
    }));
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(6),
            ..released(3)
        })),
        [Action::Report]
    );
    assert_eq!(bench.state(), (Phase::Parked, 3));
    assert_eq!(bench.machine.status().epoch, Epoch(7));
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(7),
            ..released(3)
        })),
        START_3
    );
}

#[test]
fn a_higher_epoch_is_remembered_even_if_its_order_is_behind() {
    let mut bench = Bench::running(3);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(9),
            ..stopped(2)
        })),
        [Action::Report]
    );
    assert_eq!(bench.machine.status().epoch, Epoch(9));
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(8),
            ..stopped(4)
        })),
        [Action::Report]
    );
    assert_eq!(bench.state(), (Phase::Running, 3));
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
        [
            Action::Report,
            Action::Start {
                generation: Generation(4),
                source: Source::Cold,
            }
        ]
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
        vec![TerminalCodes {
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
    for (terminal_codes, exit, ends) in cases {
        let mut bench = Bench::running(3);
        bench.step(Input::Target(Target {
            terminal_codes: terminal_codes.clone(),
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
        assert_eq!(actions, [Action::Report, expected], "{terminal_codes:?} {exit:?}");
        assert_eq!(bench.state(), (Phase::Exited(exit), 3));
    }
    // Exit 0 is Done, whatever the codes.
    let mut bench = Bench::running(3);
    bench.step(Input::Target(Target {
        terminal_codes: named(true, &[42]),
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
fn a_long_wait_is_logged_once() {
    let mut bench = Bench::fresh();
    assert!(matches!(&bench.tick(1_000)[..], [Action::Say(text)] if text.contains("first release")));
    assert_eq!(bench.machine.deadline(), None);

    bench.step(Input::Target(stopped(3)));
    assert_eq!(bench.tick(500), []);
    bench.step(Input::Target(Target {
        epoch: Epoch(2),
        ..stopped(3)
    }));
    let text = "waiting for release of generation 3".to_owned();
    assert_eq!(bench.tick(500), [Action::Say(text)]);
    bench.step(Input::Target(Target {
        epoch: Epoch(3),
        ..stopped(3)
    }));
    assert_eq!(bench.machine.deadline(), None);

    bench.step(Input::Target(stopped(4)));
    assert_eq!(bench.machine.deadline(), None, "an order of an old epoch");
    bench.step(Input::Target(Target {
        epoch: Epoch(3),
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
        counted_restarts: 2,
        ..released(0)
    }));
    bench.step(Input::Started);
    let entered = bench.machine.status().clone();
    assert_eq!((entered.revision, entered.counted_restarts), (3, 2));
    assert_eq!(entered.since, at(bench.now).unix);

    bench.now = Duration::from_millis(9);
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(5),
            counted_restarts: 1,
            ..released(0)
        })),
        [Action::Report]
    );
    let later = bench.machine.status().clone();
    assert_eq!(
        (later.revision, later.counted_restarts, later.epoch),
        (4, 2, Epoch(5))
    );
    assert_eq!(later.since, entered.since, "still the same run");
    assert_eq!(
        bench.acts(Input::Target(Target {
            epoch: Epoch(5),
            ..released(0)
        })),
        [],
        "nothing new"
    );
    assert_eq!(bench.machine.status().revision, 4);
}
