//! Mounts of an attempt do not outlive it.

use lockstep_proto::agent::v1::Phase;

use crate::rig::*;

/// Mounts two file systems on top of each other, and counts how many there are.
const MOUNTS: &str = r#"
    mkdir -p "a place" && mount -t tmpfs none "a place" && mount -t tmpfs none "a place" || exit 3
    mkdir "a place/in" && mount -t tmpfs none "a place/in" || exit 3
    grep -c "$(basename $PWD)/a.040place" /proc/self/mounts > count
    touch up.$LOCKSTEP_RESTART_ATTEMPT
    exec sleep 1000"#;

#[test]
fn mounts_of_an_attempt_go_with_it() {
    let (rig, mut daemon) = script(MOUNTS).running();
    for generation in 0..3 {
        rig.await_file(&format!("up.{generation}"));
        let count = std::fs::read_to_string(rig.path("count")).expect("its count");
        assert_eq!(count.trim(), "3", "mounts in attempt {generation}");
        daemon.restart(generation + 1);
    }
    rig.await_err("undid mounts of the last attempt: ");
}

#[test]
fn mounts_that_it_may_not_undo_are_logged_once_and_delay_nothing() {
    // Root of the container without the capability; what mounts stands in for a program that has it
    // (fusermount).
    let text = "touch up.$LOCKSTEP_RESTART_ATTEMPT; exec sleep 1000";
    let setup = script(text).under(&["setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin"]);
    let (rig, mut daemon) = setup.running();
    rig.await_file("up.0");
    let made = rig
        .exec(&["sh", "-c", "mkdir m && mount -t tmpfs none m && touch made"])
        .wait();
    assert!(made.expect("wait").success());
    for generation in 1..3 {
        daemon.send(stop_hard(generation));
        daemon.until(Phase::Parked, generation);
        daemon.send(release(generation));
        daemon.until(Phase::Running, generation);
        rig.await_file(&format!("up.{generation}"));
    }
    let line = "mounts of the last attempt that remain (not permitted to undo): 1";
    assert_eq!(rig.err().matches(line).count(), 1, "{}", rig.err());
}
