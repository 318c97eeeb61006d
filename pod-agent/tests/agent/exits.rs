//! Workers that end by themselves.

use std::process::Command;

use lockstep_proto::agent::v1::{Phase, Target, TerminalCodes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::*;

#[test]
fn exit_0_completes_the_container() {
    let (mut rig, mut daemon) = script("(setsid sleep 1000 &); echo worked").running();
    let last = daemon.rest().pop().expect("a state");
    assert_eq!((last.phase(), last.exit_code), (Phase::Done, 0));
    assert_eq!(rig.exit_code(), 0);
    assert_eq!(rig.out(), "worked\n");
}

#[test]
fn a_failure_keeps_the_container_and_is_reported_with_its_code() {
    let (mut rig, mut daemon) = script("(setsid sleep 1000 &); exit 3").running();
    let state = daemon.until(Phase::Exited, 0);
    assert_eq!(
        (state.exit_code, state.exit_signal, state.detail.as_str()),
        (3, 0, "worker exited with code 3")
    );
    rig.await_err("worker exited with code 3 (generation 0); waiting");
    eventually("the rest of its tree dies with it", || {
        rig.others().is_empty().then_some(())
    });

    // A release of the generation that failed starts nothing.
    daemon.send(Target {
        epoch: 2,
        ..release(0)
    });
    assert_eq!(daemon.until(Phase::Exited, 0).epoch, 2);
    assert_eq!(rig.others(), []);
    daemon.send(Target { epoch: 2, ..stop(1) });
    daemon.until(Phase::Parked, 1);
    daemon.send(Target {
        epoch: 2,
        ..release(1)
    });
    daemon.until(Phase::Exited, 1);
    assert!(rig.is_alive());
}

#[test]
fn a_death_by_signal_is_a_failure_too() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    kill(Pid::from_raw(rig.sole("sleep 1000").pid), Signal::SIGKILL).expect("kill");
    let state = daemon.until(Phase::Exited, 0);
    assert_eq!((state.exit_code, state.exit_signal), (137, 9));
    daemon.restart(1);
    rig.await_file("up.1");
}

#[test]
fn terminal_codes_are_the_containers_own() {
    let cases: [(&str, TerminalCodes, Option<i32>); 5] = [
        (
            "exit 42",
            TerminalCodes {
                negated: false,
                codes: vec![7, 42],
            },
            Some(42),
        ),
        (
            "exit 42",
            TerminalCodes {
                negated: true,
                codes: vec![7],
            },
            Some(42),
        ),
        (
            "kill -9 $$",
            TerminalCodes {
                negated: false,
                codes: vec![137],
            },
            Some(137),
        ),
        (
            "exit 42",
            TerminalCodes {
                negated: false,
                codes: vec![7],
            },
            None,
        ),
        (
            "exit 0",
            TerminalCodes {
                negated: true,
                codes: vec![7],
            },
            Some(0),
        ),
    ];
    for (text, terminal_codes, code) in cases {
        let mut rig = script(text).start();
        let mut daemon = rig.accept();
        daemon.send(Target {
            terminal_codes: vec![terminal_codes.clone()],
            ..first()
        });
        match code {
            Some(code) => {
                let last = daemon.rest().pop().expect("a state");
                let phase = if code == 0 { Phase::Done } else { Phase::Exited };
                assert_eq!(
                    (last.phase(), last.exit_code),
                    (phase, code),
                    "{text} {terminal_codes:?}"
                );
                assert_eq!(rig.exit_code(), code);
            }
            None => {
                daemon.until(Phase::Exited, 0);
                assert!(rig.is_alive());
            }
        }
    }
}

#[test]
fn terminal_codes_can_come_after_the_start() {
    let (mut rig, mut daemon) = script("until [ -e go ]; do sleep 0.01; done; exit 42").running();
    daemon.send(Target {
        epoch: 2,
        terminal_codes: vec![TerminalCodes {
            negated: false,
            codes: vec![42],
        }],
        ..release(0)
    });
    assert_eq!(daemon.until(Phase::Running, 0).epoch, 2);
    std::fs::write(rig.path("go"), "").expect("go");
    assert_eq!(rig.exit_code(), 42);
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let cases = [
        ("/nonexistent/worker", 127, "No such file"),
        ("no-such-program", 127, "No such file"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
    ];
    for (program, code, why) in cases {
        let mut rig = command(&[program]).start();
        let mut daemon = rig.accept();
        daemon.send(first());
        let state = daemon.until(Phase::Exited, 0);
        assert_eq!((state.exit_code, state.exit_signal), (code, 0), "{program}");
        assert!(
            state.detail.contains(program) && state.detail.contains(why),
            "{}",
            state.detail
        );
        rig.await_err(&state.detail);
        assert!(rig.is_alive());
        daemon.send(stop(1));
        daemon.until(Phase::Parked, 1);
    }
}

#[test]
fn a_missing_program_can_be_terminal() {
    let mut rig = command(&["/nonexistent/worker"]).start();
    let mut daemon = rig.accept();
    daemon.send(Target {
        terminal_codes: vec![TerminalCodes {
            negated: false,
            codes: vec![127],
        }],
        ..first()
    });
    assert_eq!(rig.exit_code(), 127);
}

#[test]
fn it_refuses_to_be_anything_but_pid_1() {
    let args = [
        "--socket",
        "/nonexistent",
        "--container",
        "w",
        "--container-id",
        "c",
        "--",
        "true",
    ];
    let output = Command::new(AGENT).args(args).output().expect("run");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(err.starts_with("lockstep: not PID 1 but "), "{err}");
}

#[test]
fn it_refuses_a_command_line_that_it_does_not_understand() {
    let output = Command::new(AGENT).arg("--sockets").output().expect("run");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(err, "lockstep: unknown option \"--sockets\"; see --help\n");
}
