//! Requests to exit: by the kubelet, by the runtime, or by any other sender of signals.

use super::*;

#[test]
fn asked_to_exit_without_a_worker() {
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
fn asked_to_exit_with_a_worker() {
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
fn an_agent_that_was_stopped_continues() {
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

/// Running at generation 3, in a container that has 30 s to end.
fn with_grace() -> Bench {
    let mut bench = Bench::running(3);
    bench.machine = bench
        .machine
        .with_termination_grace(Some(Duration::from_secs(30)));
    bench
}

#[test]
fn a_worker_that_survives_the_signal_is_supervised_again() {
    let mut bench = with_grace();
    bench.step(Input::Target(Target {
        heartbeat_timeout: Duration::from_secs(1),
        ..released(3)
    }));
    bench.step(signal(libc::SIGTERM));
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::ZERO);
    // The newest of the orders that come meanwhile is kept, and neither of them is obeyed.
    for target in [stopped(5), stopped(4)] {
        assert_eq!(bench.acts(Input::Target(target)), [Action::Report]);
    }
    assert_eq!(bench.tick(3_629_999), []);
    assert_eq!(bench.machine.deadline(), Some(Duration::from_secs(3630)));
    let actions = bench.tick(1);
    let [Action::Report, Action::Say(text), Action::Terminate] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(text.contains("signal 15"), "{text}");
    assert_eq!(bench.state(), (Phase::Stopping, 5));
    bench.step(Input::WorkerExited(Exit::Signal(15)));
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report], "it parks");
    assert_eq!(bench.state(), (Phase::Parked, 5));
}

#[test]
fn without_an_order_it_runs_on_as_before() {
    let mut bench = with_grace();
    bench.step(Input::Target(Target {
        heartbeat_timeout: Duration::from_secs(1),
        ..released(3)
    }));
    bench.step(signal(libc::SIGTERM));
    assert!(bench.machine.status().detail.contains("asked to exit"));
    bench.tick(3_630_000);
    assert_eq!(
        (bench.state(), bench.machine.deadline()),
        ((Phase::Running, 3), None)
    );
    assert_eq!(bench.machine.status().detail, "");
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::from_secs(1));
    bench.acts(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Missed);
    assert_eq!(
        bench.acts(exit(0)),
        [Action::Report, Action::Exit { code: 0, flush: true }]
    );
    assert_eq!(bench.state().0, Phase::Done);
}

#[test]
fn an_unknown_grace_is_not_guessed() {
    let mut bench = Bench::running(3);
    bench.step(signal(libc::SIGTERM));
    assert_eq!(bench.machine.deadline(), None);
}

#[test]
fn asked_to_exit_while_stopping() {
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
