//! Nothing of a worker outlives its restart, and nothing else dies of it.

use std::time::Duration;

use lockstep_proto::agent::v1::Phase;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::*;

/// Runs the script, restarts it, and checks that the first generation is gone completely when the
/// agent reports that.
fn leaves_nothing(text: &str, processes: usize) {
    let (rig, mut daemon) = script(text).running();
    rig.await_file("up");
    eventually("the worker's processes", || {
        (rig.others().len() >= processes).then_some(())
    });
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert_eq!(rig.others(), []);
}

#[test]
fn children_of_the_worker() {
    leaves_nothing("sleep 1000 & sleep 1001 & touch up; wait", 3);
}

#[test]
fn daemons_that_forked_twice() {
    leaves_nothing(
        "(setsid sleep 1000 >/dev/null 2>&1 &) ; (setsid sh -c 'sleep 1001 & wait' &); touch up; exec sleep 1002",
        4,
    );
}

#[test]
fn daemons_that_ignore_sigterm_in_a_session_of_their_own() {
    leaves_nothing(
        "trap '' TERM; (setsid sleep 1000 &); touch up; trap - TERM; exec sleep 1001",
        2,
    );
}

#[test]
fn orphans_of_a_worker_that_went_first() {
    leaves_nothing(
        "trap 'exit 1' TERM; (trap '' TERM; sleep 1000) & touch up; while :; do sleep 0.01; done",
        2,
    );
}

#[test]
fn processes_that_fork_all_the_time() {
    leaves_nothing(
        "trap '' TERM; storm() { while :; do (sleep 0.02; :) & sleep 0.001; done; }; storm & storm & storm & touch up; wait",
        5,
    );
}

#[test]
fn processes_that_flee_from_session_to_session() {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("hop"), "setsid sh hop &\n").expect("hop");
    let text = "trap '' TERM; for i in 1 2 3 4; do sh hop & done; touch up; exec sleep 1000";
    let rig = script(text).start_in(dir);
    let mut daemon = rig.accept();
    daemon.send(first());
    daemon.until(Phase::Running, 0);
    rig.await_file("up");
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert_eq!(rig.others(), []);
}

#[test]
fn stopped_processes_get_their_sigterm() {
    let (rig, mut daemon) =
        script("trap 'touch saved; exit 1' TERM; touch up; while :; do sleep 0.01; done").running();
    rig.await_file("up");
    let worker = rig.others()[0].pid;
    kill(Pid::from_raw(worker), Signal::SIGSTOP).expect("stop");
    daemon.send(stop(1));
    daemon.until(Phase::Parked, 1);
    assert!(rig.path("saved").exists());
}

#[test]
fn orphans_are_reaped_while_the_worker_runs() {
    let (rig, _daemon) =
        script("for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; touch up; exec sleep 1000").running();
    rig.await_file("up");
    eventually("no zombies", || (rig.others().len() == 1).then_some(()));
}

#[test]
fn sessions_of_kubectl_exec_live_on() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    let mut session = rig.exec(&["sh", "-c", "sleep 1003 & touch in; wait"]);
    rig.await_file("in");
    eventually("its child", || {
        rig.others()
            .iter()
            .any(|p| p.command == "sleep 1003")
            .then_some(())
    });
    daemon.restart(1);
    rig.await_file("up.1");
    daemon.send(stop_hard(2));
    daemon.until(Phase::Parked, 2);
    let alive = rig.others().into_iter().filter(|process| !process.zombie);
    let left: Vec<String> = alive.map(|process| process.command).collect();
    assert_eq!(left, ["sh -c sleep 1003 & touch in; wait", "sleep 1003"]);
    assert!(session.try_wait().expect("wait").is_none());
    drop(rig);
    session.wait().expect("wait");
}

#[test]
fn without_a_usable_proc_everything_goes() {
    let (rig, mut daemon) =
        script("trap '' TERM; (setsid sleep 1000 &); touch up; while :; do sleep 1000; done")
            .without_proc()
            .running();
    rig.await_file("up");
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert_eq!(rig.others(), []);
}

#[test]
fn any_user_without_any_capability() {
    let setup = script(
        "id -u > uid; trap '' TERM; (setsid sleep 1000 &); touch up.$LOCKSTEP_RESTART_ATTEMPT; while :; do sleep 1000; done",
    );
    let (rig, mut daemon) = setup
        .under(&[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
            "--no-new-privs",
        ])
        .running();
    rig.await_file("up.0");
    assert_eq!(
        std::fs::read_to_string(rig.path("uid")).expect("uid").trim(),
        "65534"
    );
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert_eq!(rig.others(), []);
    daemon.send(release(1));
    daemon.until(Phase::Running, 1);
    rig.await_file("up.1");
}

#[test]
fn what_it_may_not_kill_it_leaves_to_the_daemon() {
    let setup = script("setpriv --reuid=65534 --clear-groups sleep 1000 & touch up; wait");
    let (rig, mut daemon) = setup
        .under(&["setpriv", "--inh-caps=-kill", "--bounding-set=-kill"])
        .running();
    rig.await_file("up");
    let denied = eventually("the child of another user", || {
        rig.others()
            .into_iter()
            .find(|process| process.command == "sleep 1000")
    });
    daemon.send(stop_hard(1));
    let state = loop {
        let state = daemon.until(Phase::Stopping, 1);
        if state.needs_host_kill {
            break state;
        }
    };
    assert!(
        state.detail.contains("not permitted to kill pid") && state.detail.contains("sleep"),
        "{}",
        state.detail
    );
    assert_eq!(rig.others(), std::slice::from_ref(&denied));
    kill(Pid::from_raw(denied.pid), Signal::SIGKILL).expect("the daemon's part");
    let parked = daemon.until(Phase::Parked, 1);
    assert!(!parked.needs_host_kill && parked.detail.is_empty());
}

#[test]
fn a_big_tree_goes_quickly() {
    let (rig, mut daemon) = script(
        "for i in 1 2 3 4 5 6 7 8 9 10; do (for j in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 1000 & done; wait) & done; touch up; wait",
    )
    .running();
    rig.await_file("up");
    eventually("its processes", || (rig.others().len() == 211).then_some(()));
    let begin = std::time::Instant::now();
    daemon.send(stop(1));
    daemon.until(Phase::Parked, 1);
    println!("211 processes: parked after {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(rig.others(), []);
}

#[test]
fn outside_a_container_it_keeps_to_its_own_tree_too() {
    let text = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)
        until [ -s daemon ]; do sleep 0.01; done; touch up; exec sleep 1001";
    let mut bystander = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("sleep");
    let (mut rig, mut daemon) = script(text).without_namespace().running();
    rig.await_file("up");
    let pid = std::fs::read_to_string(rig.path("daemon"))
        .expect("its pid")
        .trim()
        .parse()
        .expect("a number");
    kill(Pid::from_raw(pid), None).expect("alive");
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert!(kill(Pid::from_raw(pid), None).is_err());
    assert!(bystander.try_wait().expect("wait").is_none());
    assert!(rig.is_alive());
    bystander.kill().expect("kill");
    bystander.wait().expect("wait");
}
