//! Waiting, starting, stopping, starting again.

use std::time::{Duration, Instant};

use lockstep_proto::agent::v1::{Phase, Target};

use crate::rig::*;

#[test]
fn nothing_starts_without_a_release_that_names_it() {
    let rig = patient().start();
    let mut daemon = rig.accept();
    let register = &daemon.register;
    assert_eq!(
        (
            register.protocol,
            register.container.as_str(),
            register.container_id.as_str()
        ),
        (1, "worker", "c1")
    );
    assert_eq!((register.epoch, register.generation), (0, None));
    daemon.until(Phase::Fresh, 0);
    rig.await_err("waiting for the first release");
    assert_eq!(rig.others(), []);

    // Others are released, this one is not named.
    daemon.send(release(3));
    assert_eq!(daemon.until(Phase::Fresh, 0).epoch, 1);
    assert_eq!(rig.others(), []);

    daemon.send(stop(4));
    daemon.until(Phase::Parked, 4);
    rig.await_err("release of generation 4");
    daemon.send(release(3));
    daemon.until(Phase::Parked, 4);
    assert_eq!(rig.others(), []);

    daemon.send(release(4));
    daemon.send(stop(5));
    daemon.until(Phase::Parked, 5);
    assert_eq!(rig.others(), []);

    daemon.send(Target {
        start_fresh: true,
        ..release(5)
    });
    daemon.until(Phase::Running, 5);
    rig.await_file("up.5");
    assert_eq!(rig.err().lines().count(), 2, "{}", rig.err());
}

#[test]
fn every_restart_is_a_new_process_with_the_new_count_in_the_same_log() {
    let (rig, mut daemon) =
        script("echo run $LOCKSTEP_RESTART_ATTEMPT; touch up.$LOCKSTEP_RESTART_ATTEMPT; exec sleep 1000")
            .running();
    let mut pids = std::collections::BTreeSet::new();
    for generation in 0..20 {
        rig.await_file(&format!("up.{generation}"));
        assert!(pids.insert(rig.sole("sleep 1000").inner));
        daemon.restart(generation + 1);
    }
    rig.await_file("up.20");
    let expected: Vec<String> = (0..=20).map(|generation| format!("run {generation}")).collect();
    assert_eq!(rig.out().lines().collect::<Vec<_>>(), expected);
    assert_eq!(rig.err(), "", "restarts are silent");
}

#[test]
fn a_restart_takes_milliseconds() {
    let (rig, mut daemon) = patient().running();
    let mut times = Vec::new();
    for generation in 1..=50 {
        rig.await_file(&format!("up.{}", generation - 1));
        let begin = Instant::now();
        daemon.send(stop(generation));
        daemon.until(Phase::Parked, generation);
        let parked = begin.elapsed();
        daemon.send(release(generation));
        daemon.until(Phase::Running, generation);
        times.push((begin.elapsed(), parked));
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "stop to running: median {:?} (parked after {:?}), worst {:?}",
        median.0, median.1, worst.0
    );
}

#[test]
fn sigterm_is_not_enough_for_some() {
    let (rig, mut daemon) = script("trap '' TERM; touch up; while :; do sleep 1000; done").running();
    rig.await_file("up");
    daemon.send(stop_hard(1));
    daemon.until(Phase::Parked, 1);
    assert_eq!(rig.others(), []);
    assert!(
        rig.err()
            .contains("still running 50 ms after SIGTERM: sending SIGKILL"),
        "{}",
        rig.err()
    );
}

#[test]
fn the_grace_is_the_workers() {
    let (rig, mut daemon) =
        script("trap 'echo saved > checkpoint; exit 3' TERM; touch up; while :; do sleep 0.01; done")
            .running();
    rig.await_file("up");
    daemon.send(stop(1));
    daemon.until(Phase::Parked, 1);
    assert!(rig.path("checkpoint").exists());
}

#[test]
fn exit_0_as_the_answer_to_a_restart_is_not_done() {
    let (mut rig, mut daemon) =
        script("trap 'exit 0' TERM; touch up.$LOCKSTEP_RESTART_ATTEMPT; while :; do sleep 0.01; done")
            .running();
    rig.await_file("up.0");
    daemon.restart(1);
    rig.await_file("up.1");
    assert!(rig.is_alive());
}

#[test]
fn a_worker_may_close_its_output() {
    let (rig, mut daemon) =
        script("exec >&- 2>&- <&-; touch up.$LOCKSTEP_RESTART_ATTEMPT; exec sleep 1000").running();
    rig.await_file("up.0");
    daemon.restart(1);
    rig.await_file("up.1");
}

#[test]
fn orders_that_are_behind_are_answered_not_obeyed() {
    let (rig, mut daemon) = patient().running();
    rig.await_file("up.0");
    let worker = rig.sole("sleep 1000");
    daemon.send(Target {
        epoch: 7,
        ..release(0)
    });
    let state = daemon.until(Phase::Running, 0);
    assert_eq!(state.epoch, 7);
    // Repetition is silent, so the answer is to the second one.
    daemon.send(Target {
        epoch: 7,
        ..release(0)
    });
    daemon.send(Target { epoch: 6, ..stop(5) });
    let answer = daemon.state().expect("an answer");
    assert_eq!(answer, state);
    assert_eq!(rig.sole("sleep 1000"), worker);

    daemon.send(Target { epoch: 7, ..stop(5) });
    daemon.until(Phase::Parked, 5);
    daemon.send(Target {
        epoch: 9,
        ..release(4)
    });
    assert_eq!(daemon.until(Phase::Parked, 5).epoch, 9);
    daemon.send(Target {
        epoch: 9,
        counted_restarts: 3,
        ..release(5)
    });
    assert_eq!(daemon.until(Phase::Running, 5).counted_restarts, 3);
}

#[test]
fn newer_orders_overtake_a_stop_that_is_under_way() {
    let (rig, mut daemon) =
        script("trap '' TERM; touch up.$LOCKSTEP_RESTART_ATTEMPT; while :; do sleep 1000; done").running();
    rig.await_file("up.0");
    daemon.send(Target {
        grace_ms: 300,
        ..stop(1)
    });
    daemon.send(stop(2));
    daemon.send(release(3));
    let state = daemon.until(Phase::Running, 3);
    rig.await_file("up.3");
    assert!(!rig.path("up.1").exists() && !rig.path("up.2").exists());
    assert!(state.since_unix_nanos > 1_600_000_000_000_000_000);
}

#[test]
fn revisions_grow_and_times_are_real() {
    let rig = patient().start();
    let mut daemon = rig.accept();
    let mut states = vec![daemon.state().expect("fresh")];
    let before = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    daemon.send(first());
    while states.last().is_none_or(|state| state.phase() != Phase::Running) {
        states.push(daemon.state().expect("a state"));
    }
    assert_eq!(states[0].revision, 1);
    assert!(states.is_sorted_by(|a, b| a.revision < b.revision));
    let since = Duration::from_nanos(states.last().expect("running").since_unix_nanos.unsigned_abs());
    assert!(since >= before && since < before + PATIENCE);
}

#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    // The pipe is full as soon as dd runs; the agent's line about SIGKILL would block.
    let text = "trap '' TERM
        dd if=/dev/zero of=/dev/stderr bs=4096 count=1000 status=none &
        touch up.$LOCKSTEP_RESTART_ATTEMPT; wait";
    let (rig, mut daemon) = script(text).with_stuck_log().running();
    rig.await_file("up.0");
    eventually("dd to be stuck", || {
        let dd = rig
            .others()
            .into_iter()
            .find(|process| process.command.starts_with("dd "))?;
        (stat_field(dd.pid, 0)? == "S").then_some(())
    });
    for generation in 1..4 {
        daemon.send(stop_hard(generation));
        daemon.until(Phase::Parked, generation);
        daemon.send(release(generation));
        daemon.until(Phase::Running, generation);
    }
}
