//! Standbys that are killed, at any time: each attempt runs once, and another standby follows.

use std::time::Duration;

use super::*;

#[test]
fn one_that_waits_is_followed_by_another() {
    let mut worker = Program::new(PATIENT).start();
    worker.ready();
    let standby = worker.standby();
    standby.kill();
    let state = worker.reason("the standby was killed by signal 9");
    assert_eq!((state.phase(), state.generation), (Phase::Running, 0));
    worker.ready();
    let next = worker.standby();
    assert_ne!(next.inner, standby.inner);
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), next.inner);
    // No module is to blame.
    assert!(worker.found_imported("slow"));
    worker.assert_no_complaints();
}

#[test]
fn one_that_imports_is_followed_by_another_that_imports_the_same() {
    let stuck = "import os, time\nif os.path.exists('stuck'):\n    open('importing', 'x').close()\n    time.sleep(1000)";
    let text = PATIENT.replace(
        "tell()",
        "import stuck\ntell()\nwhile not os.path.exists('up'): time.sleep(0.01)",
    );
    let mut worker = Program::new(&text).module("stuck", stuck).start();
    worker.pid();
    for name in ["stuck", "up"] {
        fs::write(worker.rig.path(name), "").expect("write");
    }
    worker.rig.await_file("importing");
    fs::remove_file(worker.rig.path("stuck")).expect("remove");
    worker.standby().kill();
    worker.reason("the standby was killed by signal 9");
    worker.ready();
    assert!(is_from_standby(worker.restart()));
    assert!(worker.found_imported("stuck"));
    worker.assert_no_complaints();
}

/// Stops a standby that waits, so that it cannot go on.
fn freeze(worker: &mut Worker) -> Process {
    worker.ready();
    let standby = worker.standby();
    kill(Pid::from_raw(standby.pid), Signal::SIGSTOP).expect("stop");
    standby
}

#[test]
fn one_that_does_not_go_on_is_given_up() {
    let mut worker = Program::new(PATIENT).start();
    let standby = freeze(&mut worker);
    assert_eq!(worker.restart(), cold());
    assert_ne!(worker.pid(), standby.inner);
    let others = worker.rig.others();
    assert!(
        others.iter().all(|process| process.inner != standby.inner),
        "{others:?}"
    );
    worker
        .rig
        .await_err("no standby for now: the standby did not go on in time");
    worker.ready();
    assert!(is_from_standby(worker.restart()));
    worker.assert_no_complaints();
}

#[test]
fn what_one_that_does_not_go_on_has_started_ends_with_it() {
    let text = PATIENT.replace("import slow", "import spawner");
    let spawner = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])";
    let mut worker = Program::new(&text).module("spawner", spawner).start();
    let standby = freeze(&mut worker);
    let [child] = standby.children()[..] else {
        panic!("children: {:?}", standby.children())
    };
    assert_eq!(worker.restart(), cold());
    let others = worker.rig.others();
    assert!(
        others
            .iter()
            .all(|process| process.pid != child || process.zombie),
        "{others:?}"
    );
}

#[test]
fn a_stop_that_overtakes_the_release_runs_nothing() {
    let mut worker = Program::new(PATIENT).start();
    freeze(&mut worker);
    worker.stop();
    worker.order(release(1));
    worker.when("the release", |state| state.phase() == Phase::Starting);
    worker.stop();
    assert_eq!(worker.rig.others(), []);
    assert_eq!(worker.release(), cold());
    worker.pid();
    assert!(!worker.rig.path("once.1").exists(), "the program ran");
    worker.assert_no_complaints();
}

/// Kills the standby around its release, and expects exactly one worker in each generation.
#[test]
fn one_that_is_killed_while_it_is_released_leaves_one_worker() {
    let mut worker = Program::lively(&PATIENT.replace("import slow", "import json")).start();
    let (mut afresh, mut ended) = (0, 0);
    for round in 0..20 {
        worker.ready();
        let standby = worker.standby();
        worker.stop();
        let generation = worker.generation;
        worker.order(release(generation));
        // From before the release is read until after the program has begun.
        std::thread::sleep(Duration::from_micros(round % 10 * 100));
        standby.kill();
        let state = worker.when("one start", |state| {
            state.generation == generation && matches!(state.phase(), Phase::Running | Phase::Exited)
        });
        let starts = state.starts.expect("how it was started");
        assert_eq!(starts.standby + starts.cold, 1, "{state:?}");
        if starts.cold == 1 {
            afresh += 1;
            assert_eq!(state.phase(), Phase::Running, "{state:?}");
            assert_ne!(worker.pid(), standby.inner);
            continue;
        }
        let exited = |state: &State| state.phase() == Phase::Exited;
        let state = if exited(&state) {
            state
        } else {
            worker.when("its end", exited)
        };
        assert_eq!(
            (state.exit_signal, state.generation),
            (9, generation),
            "{state:?}"
        );
        ended += 1;
        // The group restarts, as after any end of a worker.
        worker.stop();
        worker.release();
        worker.pid();
    }
    println!("killed before it went on: {afresh}, after that: {ended}");
    assert!(afresh > 0, "the release was always faster");
    worker.assert_no_complaints();
}
