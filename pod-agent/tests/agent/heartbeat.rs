//! Workers that give heartbeats, and some that stop giving them.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockstep_proto::agent::v1::{Heartbeat, Phase, State, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::*;

const TIMEOUT: Duration = Duration::from_millis(500);

/// Touches its file until `hang` exists.
const BEATING: &str = "while :; do [ -e hang ] || touch $LOCKSTEP_HEARTBEAT; sleep 0.05; done";

fn asked(target: Target) -> Target {
    Target {
        heartbeat_timeout_ms: u32::try_from(TIMEOUT.as_millis()).expect("short"),
        ..target
    }
}

/// Starts it and releases generation 0, with heartbeats.
fn running(setup: Setup) -> (Rig, Daemon) {
    let rig = setup.with_heartbeat().start();
    let mut daemon = rig.accept();
    daemon.send(asked(first()));
    daemon.until(Phase::Running, 0);
    (rig, daemon)
}

fn until(daemon: &mut Daemon, heartbeat: Heartbeat) -> State {
    loop {
        let state = daemon.state().expect("a state");
        assert_eq!(state.phase(), Phase::Running, "{state:?}");
        if state.heartbeat() == heartbeat {
            return state;
        }
    }
}

#[test]
fn a_worker_that_stops_touching_its_file_is_reported_and_not_stopped() {
    let (rig, mut daemon) = running(script(BEATING));
    until(&mut daemon, Heartbeat::Unspecified);
    let hung = Instant::now();
    std::fs::write(rig.path("hang"), "").expect("hang");
    until(&mut daemon, Heartbeat::Missed);
    // The margin is for a busy machine.
    assert!(
        hung.elapsed() < TIMEOUT + Duration::from_secs(3),
        "{:?}",
        hung.elapsed()
    );
    assert!(!rig.others().is_empty(), "a process was killed");
    rig.await_err("no heartbeat for 500ms (generation 0)");

    std::fs::remove_file(rig.path("hang")).expect("go on");
    until(&mut daemon, Heartbeat::Unspecified);
    rig.await_err("the heartbeat is back");
}

#[test]
fn a_worker_that_was_stopped_by_a_signal_is_found_and_can_be_restarted() {
    let (rig, mut daemon) = running(script(BEATING));
    until(&mut daemon, Heartbeat::Unspecified);
    let worker = rig.others()[0].pid;
    kill(Pid::from_raw(worker), Signal::SIGSTOP).expect("stop");
    until(&mut daemon, Heartbeat::Missed);
    daemon.send(asked(stop_hard(1)));
    daemon.until(Phase::Parked, 1);
    daemon.send(asked(release(1)));
    let state = daemon.until(Phase::Running, 1);
    assert_eq!(state.heartbeat(), Heartbeat::Awaited);
    until(&mut daemon, Heartbeat::Unspecified);
}

#[test]
fn a_worker_that_does_not_come_up_in_time_is_reported_and_not_stopped() {
    let rig = script("while [ ! -e up ]; do sleep 0.05; done; touch $LOCKSTEP_HEARTBEAT; exec sleep 1000")
        .with_heartbeat()
        .start();
    let mut daemon = rig.accept();
    daemon.send(Target {
        ready_timeout_ms: 300,
        heartbeat_timeout_ms: 60_000,
        ..first()
    });
    assert_eq!(daemon.until(Phase::Running, 0).heartbeat(), Heartbeat::Awaited);
    until(&mut daemon, Heartbeat::Overdue);
    rig.await_err("no first heartbeat within 300ms (generation 0)");
    std::fs::write(rig.path("up"), "").expect("go on");
    until(&mut daemon, Heartbeat::Unspecified);
    rig.await_err("the heartbeat is back");
}

#[test]
fn any_user_can_give_heartbeats_in_any_way() {
    let ways = [
        "touch $LOCKSTEP_HEARTBEAT",
        ": > $LOCKSTEP_HEARTBEAT",
        "echo alive > $LOCKSTEP_HEARTBEAT",
    ];
    for way in ways {
        // The agent keeps one user, the worker becomes another.
        let worker =
            format!("exec setpriv --reuid 4321 --clear-groups sh -c 'while :; do {way}; sleep 0.05; done'");
        let (rig, mut daemon) = running(script(&worker));
        until(&mut daemon, Heartbeat::Unspecified);
        assert_eq!(rig.err(), "", "{way}");
    }
}

/// A worker that prints its socket, and gives its heartbeats by it. The test sends them for it.
fn by_socket() -> Setup {
    script("echo \"<$LOCKSTEP_HEARTBEAT>\"; exec sleep 1000").under(&["env", "LOCKSTEP_HEARTBEAT=socket"])
}

/// Sends heartbeats to the rig's socket, with this pause, while `check` goes on.
fn sending<T>(rig: &Rig, pause: Duration, check: impl FnOnce() -> T) -> T {
    let sender = UnixDatagram::unbound().expect("a socket");
    let (path, over) = (rig.path("beat"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Between two workers there is no socket to send to.
                let _ = sender.send_to(b"", &path);
                std::thread::sleep(pause);
            }
        });
        let checked = check();
        over.store(true, Ordering::Relaxed);
        checked
    })
}

#[test]
fn heartbeats_can_be_sent_to_a_socket_and_their_silence_is_reported() {
    let often = Duration::from_millis(20);
    let (rig, mut daemon) = running(by_socket());
    let printed = format!("<{}>", rig.path("beat").display());
    eventually("its output", || rig.out().contains(&printed).then_some(()));
    sending(&rig, often, || until(&mut daemon, Heartbeat::Unspecified));
    until(&mut daemon, Heartbeat::Missed);
    rig.await_err("no heartbeat for 500ms (generation 0)");
    sending(&rig, often, || until(&mut daemon, Heartbeat::Unspecified));

    daemon.send(asked(stop_hard(1)));
    daemon.until(Phase::Parked, 1);
    daemon.send(asked(release(1)));
    assert_eq!(daemon.until(Phase::Running, 1).heartbeat(), Heartbeat::Awaited);
    sending(&rig, often, || until(&mut daemon, Heartbeat::Unspecified));
}

#[test]
fn what_a_worker_says_of_its_work_is_reported_and_in_full_when_it_ends() {
    let tell = "python3 -c 'import os, socket, sys; \
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), os.environ[\"LOCKSTEP_HEARTBEAT\"])'";
    let worker = format!(
        "{tell} 'STEP=1\nSECTION=load'; while ! [ -e go ]; do sleep 0.01; done; {tell} STEP=2; {tell} STEP=3; {tell} 'ERROR=OSError: no space'; exit 4"
    );
    let rig = script(&worker.replace("\\n", "\n"))
        .under(&["env", "LOCKSTEP_HEARTBEAT=socket"])
        .with_heartbeat()
        .start();
    let mut daemon = rig.accept();
    daemon.send(first());
    let said = |state: &State| {
        state
            .progress
            .clone()
            .map(|progress| (progress.step, progress.section, progress.error))
    };
    let running = loop {
        let state = daemon.state().expect("a state");
        if state.progress.is_some() {
            break state;
        }
    };
    assert_eq!(running.phase(), Phase::Running);
    assert_eq!(said(&running), Some((Some(1), "load".to_owned(), String::new())));
    std::fs::write(rig.path("go"), "").expect("go on");
    let ended = daemon.until(Phase::Exited, 0);
    let error = "OSError: no space".to_owned();
    assert_eq!(said(&ended), Some((Some(3), "load".to_owned(), error)));
    daemon.send(release(1));
    assert_eq!(said(&daemon.until(Phase::Running, 1)), None, "a new attempt");
}

#[test]
fn a_worker_may_send_far_more_heartbeats_than_are_looked_at() {
    let (rig, mut daemon) = running(by_socket());
    sending(&rig, Duration::from_micros(10), || {
        until(&mut daemon, Heartbeat::Unspecified);
        daemon.restart(1);
    });
    assert_eq!(rig.err(), "");
}

#[test]
fn a_worker_gets_no_socket_that_cannot_be_created() {
    let worker = r#"echo "<${LOCKSTEP_HEARTBEAT-none}>"; exec sleep 1000"#;
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::create_dir(dir.path().join("beat")).expect("in its way");
    let rig = script(worker)
        .under(&["env", "LOCKSTEP_HEARTBEAT=socket"])
        .with_heartbeat()
        .start_in(dir);
    let mut daemon = rig.accept();
    daemon.send(asked(first()));
    daemon.until(Phase::Running, 0);
    // It cannot be judged.
    until(&mut daemon, Heartbeat::Unspecified);
    rig.await_err("cannot take heartbeats");
    eventually("its output", || rig.out().contains("<none>").then_some(()));
}

#[test]
fn an_unprivileged_agent_can_take_heartbeats() {
    let user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"];
    let (_rig, mut daemon) = running(script(BEATING).under(&user));
    until(&mut daemon, Heartbeat::Unspecified);
}

#[test]
fn without_required_heartbeats_no_worker_is_judged() {
    let rig = script("touch $LOCKSTEP_HEARTBEAT; touch up; exec sleep 1000")
        .with_heartbeat()
        .start();
    let mut daemon = rig.accept();
    daemon.send(first());
    assert_eq!(
        daemon.until(Phase::Running, 0).heartbeat(),
        Heartbeat::Unspecified
    );
    rig.await_file("up");
    assert_eq!(rig.err(), "");
}
