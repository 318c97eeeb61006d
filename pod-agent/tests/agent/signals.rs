//! Signals to PID 1: pod deletion, STOPSIGNAL, and whatever a user sends.

use lockstep_proto::agent::v1::{Phase, State, Target};
use nix::sys::signal::Signal;

use crate::rig::*;

/// A worker that answers SIGTERM as `action` says.
fn answers(action: &str) -> Setup {
    script(&format!(
        "trap '{action}' TERM; touch up; while :; do sleep 0.01; done"
    ))
}

fn never_reported_as_ended(states: &[State]) {
    for state in states {
        assert!(!matches!(state.phase(), Phase::Done | Phase::Exited), "{state:?}");
    }
}

#[test]
fn pod_deletion_is_between_kubernetes_and_the_worker() {
    for (action, code) in [("exit 0", 0), ("exit 7", 7), ("trap - TERM; kill $$", 143)] {
        let (mut rig, mut daemon) = answers(action).running();
        rig.await_file("up");
        rig.signal(Signal::SIGTERM);
        assert_eq!(rig.exit_code(), code, "{action}");
        never_reported_as_ended(&daemon.rest());
    }
}

#[test]
fn a_worker_without_a_handler_dies_of_sigterm() {
    let (mut rig, _daemon) = patient().running();
    rig.await_file("up.0");
    rig.signal(Signal::SIGTERM);
    assert_eq!(rig.exit_code(), 143);
}

#[test]
fn orders_do_not_shorten_the_time_that_kubernetes_grants() {
    let (mut rig, mut daemon) = answers("touch told").running();
    rig.await_file("up");
    rig.signal(Signal::SIGTERM);
    rig.await_file("told");
    let state = daemon.until(Phase::Running, 0);
    assert_eq!(state.detail, "asked to exit by signal 15");
    daemon.send(Target {
        grace_ms: 1,
        ..release(1)
    });
    assert_eq!(
        daemon.until(Phase::Running, 0).revision,
        state.revision,
        "the answer"
    );
    assert!(rig.is_alive());
    // A crash meanwhile is not this group's failure either.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(rig.others()[0].pid), Signal::SIGKILL).expect("kill");
    assert_eq!(rig.exit_code(), 137);
    never_reported_as_ended(&daemon.rest());
}

#[test]
fn asked_to_exit_while_nothing_runs() {
    let mut fresh = patient().start();
    fresh.accept().until(Phase::Fresh, 0);
    fresh.signal(Signal::SIGTERM);
    assert_eq!(fresh.exit_code(), 143);

    let (mut parked, mut daemon) = patient().running();
    daemon.send(stop(1));
    daemon.until(Phase::Parked, 1);
    parked.signal(Signal::SIGTERM);
    assert_eq!(parked.exit_code(), 143);

    let (mut exited, mut daemon) = script("exit 3").running();
    daemon.until(Phase::Exited, 0);
    exited.signal(Signal::SIGTERM);
    assert_eq!(exited.exit_code(), 143);

    let mut interrupted = patient().start();
    interrupted.accept().until(Phase::Fresh, 0);
    interrupted.signal(Signal::SIGINT);
    assert_eq!(interrupted.exit_code(), 130);
}

#[test]
fn asked_to_exit_before_any_daemon_is_there() {
    let mut rig = patient().start();
    rig.close();
    eventually("the agent instead of unshare", || {
        rig.processes()
            .first()
            .filter(|agent| agent.command.contains("--container-id"))
            .map(drop)
    });
    rig.await_err("waiting");
    rig.signal(Signal::SIGTERM);
    assert_eq!(rig.exit_code(), 143);
}

#[test]
fn asked_to_exit_while_stopping() {
    let (mut rig, mut daemon) = answers("touch told").running();
    rig.await_file("up");
    daemon.send(Target {
        grace_ms: 500,
        ..stop(1)
    });
    rig.await_file("told");
    rig.signal(Signal::SIGTERM);
    daemon.send(release(1));
    assert_eq!(rig.exit_code(), 143);
    let states = daemon.rest();
    assert!(
        states.iter().all(|state| state.phase() == Phase::Stopping),
        "{states:?}"
    );
}

#[test]
fn any_signal_can_be_the_stop_signal() {
    for (signal, name, code) in [
        (Signal::SIGUSR1, "USR1", 5),
        (Signal::SIGQUIT, "QUIT", 0),
        (Signal::SIGWINCH, "WINCH", 6),
    ] {
        let text = format!("trap 'exit {code}' {name}; touch up; while :; do sleep 0.01; done");
        let (mut rig, mut daemon) = script(&text).running();
        rig.await_file("up");
        rig.signal(signal);
        assert_eq!(rig.exit_code(), code);
        never_reported_as_ended(&daemon.rest());
    }
}

#[test]
fn signals_from_within_the_container_are_passed_on() {
    let text = "for s in HUP USR1 USR2 INT QUIT CONT ALRM; do trap \"echo $s\" $s; done; touch up; while :; do sleep 0.01; done";
    let (mut rig, mut daemon) = script(text).running();
    rig.await_file("up");
    for name in ["HUP", "USR1", "USR2", "INT", "QUIT", "CONT", "ALRM"] {
        let status = rig.exec(&["kill", "-s", name, "1"]).wait().expect("kill");
        assert!(status.success());
        eventually(name, || rig.out().lines().any(|line| line == name).then_some(()));
    }
    assert!(rig.is_alive());
    // They were no request to exit.
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
}

#[test]
fn sigterm_from_within_the_container_ends_it_as_without_the_agent() {
    let (mut rig, _daemon) = answers("exit 9").running();
    rig.await_file("up");
    // It may die with the container before it can report its success.
    rig.exec(&["kill", "-TERM", "1"]).wait().expect("kill");
    assert_eq!(rig.exit_code(), 9);
}
