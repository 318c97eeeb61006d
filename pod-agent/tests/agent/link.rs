//! The daemon may be away, send garbage, or die at any moment: the worker does not notice.

use lockstep_proto::agent::v1::{Phase, Target};

use crate::rig::*;

#[test]
fn a_daemon_that_comes_back_finds_the_worker_as_it_was() {
    let (mut rig, mut daemon) = patient().running();
    daemon.restart(1);
    daemon.send(Target {
        epoch: 5,
        counted_restarts: 2,
        ..release(1)
    });
    let state = daemon.until(Phase::Running, 1);
    rig.await_file("up.1");
    let worker = rig.sole("sleep 1000");
    rig.close();
    drop(daemon);
    rig.listen();
    let mut daemon = rig.accept();
    assert_eq!((daemon.register.epoch, daemon.register.generation), (5, Some(1)));
    assert_eq!(
        daemon.until(Phase::Running, 1),
        state,
        "nothing has changed, so nothing has"
    );
    assert_eq!(rig.sole("sleep 1000"), worker);
    daemon.send(Target { epoch: 5, ..stop(2) });
    daemon.until(Phase::Parked, 2);
}

#[test]
fn a_failure_while_the_daemon_is_away_is_kept_for_it() {
    let (mut rig, daemon) = script("until [ -e go ]; do sleep 0.01; done; exit 4").running();
    rig.close();
    drop(daemon);
    std::fs::write(rig.path("go"), "").expect("go");
    rig.await_err("cannot reach the node daemon");
    rig.listen();
    let mut daemon = rig.accept();
    assert_eq!(daemon.until(Phase::Exited, 0).exit_code, 4);
    daemon.send(stop(1));
    daemon.until(Phase::Parked, 1);
}

#[test]
fn done_does_not_wait_for_a_daemon_that_is_away() {
    let (mut rig, daemon) = script("until [ -e go ]; do sleep 0.01; done").running();
    rig.close();
    drop(daemon);
    std::fs::write(rig.path("go"), "").expect("go");
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn a_socket_that_is_not_there_yet_is_waited_for() {
    let mut rig = patient().start();
    rig.close();
    rig.await_err("waiting");
    rig.listen();
    let mut daemon = rig.accept();
    daemon.send(first());
    daemon.until(Phase::Running, 0);
}

#[test]
fn invalid_frames_cost_only_the_connection() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    let worker = rig.sole("sleep 1000");
    let nonsense: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0, 1, 0, 1],
        &[0, 0, 0, 2, 0xff, 0xff],
        &[0xff; 100_000],
    ];
    for bytes in nonsense {
        // The agent may close before it has read all of it.
        daemon.try_send_bytes(bytes);
        assert_eq!(daemon.rest(), []);
        daemon = rig.accept();
        daemon.until(Phase::Running, 0);
    }
    assert_eq!(rig.sole("sleep 1000"), worker);
    daemon.restart(1);
}

#[test]
fn half_a_frame_is_forgotten_with_its_connection() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    let frame = frame(&stop(1));
    for length in [1, 4, frame.len() - 1] {
        daemon.send_bytes(&frame[..length]);
        drop(daemon);
        daemon = rig.accept();
        daemon.until(Phase::Running, 0);
    }
    for byte in &frame {
        daemon.send_bytes(&[*byte]);
    }
    daemon.until(Phase::Parked, 1);
}

#[test]
fn a_daemon_that_never_reads_does_not_hold_up_restarts() {
    let (rig, mut daemon) = patient().running();
    // More answers than a socket holds.
    for epoch in 2..20_000 {
        daemon.send(Target { epoch, ..release(0) });
    }
    daemon.send(Target {
        epoch: 20_000,
        ..stop(1)
    });
    daemon.send(Target {
        epoch: 20_000,
        ..release(1)
    });
    rig.await_file("up.1");
    daemon.until(Phase::Running, 1);
}

#[test]
fn an_empty_order_is_one_that_is_behind() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    daemon.send(Target::default());
    assert_eq!(
        daemon.state().map(|state| (state.phase(), state.epoch)),
        Some((Phase::Running, 1))
    );
}

#[test]
fn a_daemon_may_die_at_any_moment_of_a_restart() {
    let (rig, mut daemon) =
        script("echo $LOCKSTEP_RESTART_ATTEMPT; touch up.$LOCKSTEP_RESTART_ATTEMPT; exec sleep 1000")
            .running();
    rig.await_file("up.0");
    let mut generation = 0;
    for _ in 0..2 {
        for moment in 0..4 {
            generation += 1;
            daemon.send(stop(generation));
            if moment == 0 {
                daemon = rig.reconnect(daemon);
                daemon.send(stop(generation));
            }
            daemon.until(Phase::Parked, generation);
            if moment == 1 {
                daemon = rig.reconnect(daemon);
                daemon.until(Phase::Parked, generation);
            }
            daemon.send(release(generation));
            if moment == 2 {
                daemon = rig.reconnect(daemon);
                daemon.send(release(generation));
            }
            daemon.until(Phase::Running, generation);
            if moment == 3 {
                daemon = rig.reconnect(daemon);
                daemon.until(Phase::Running, generation);
            }
            rig.await_file(&format!("up.{generation}"));
        }
    }
    let starts: Vec<u64> = rig
        .out()
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(
        starts,
        (0..=generation).collect::<Vec<_>>(),
        "each generation once"
    );
}
