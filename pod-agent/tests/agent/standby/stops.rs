//! A stop ends the worker and all that it has started, and spares the standby.

use std::slice;

use super::*;

/// Ends by SIGTERM after a while, with children in sessions of their own, one of which ignores
/// SIGTERM.
const FAMILY: &str = r#"
import slow
subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & wait"])
subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; touch ignores.$LOCKSTEP_RESTART_ATTEMPT; while :; do sleep 1; done"])
while not os.path.exists("ignores." + ATTEMPT):
    time.sleep(0.01)
def end(*args):
    time.sleep(0.1)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
tell()
beat()
while True:
    signal.pause()
"#;

/// Starts a process while it is imported.
const SPAWNER: &str = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])";

fn short(generation: u64) -> Target {
    Target {
        grace_ms: 300,
        ..stop(generation)
    }
}

fn at_once(generation: u64) -> Target {
    Target {
        grace_ms: 0,
        ..stop(generation)
    }
}

#[test]
fn stops_spare_the_standby() {
    let mut worker = Program::new(FAMILY).start();
    for order in [short, at_once, short] {
        worker.ready();
        let standby = worker.standby();
        worker.stop_by(order);
        assert_eq!(
            worker.rig.others(),
            slice::from_ref(&standby),
            "after {:?}",
            order(1)
        );
        assert!(is_from_standby(worker.release()));
        assert_eq!(worker.pid(), standby.inner);
    }
    worker.assert_no_complaints();
}

#[test]
fn an_end_by_itself_spares_the_standby() {
    let mut worker = Program::new(
        &PATIENT
            .replace("signal.pause()", "signal.pause() or sys.exit(3)")
            .replace("tell()", "signal.signal(signal.SIGUSR1, lambda *_: None)\ntell()"),
    )
    .start();
    worker.ready();
    let standby = worker.standby();
    let others = worker.rig.others();
    let own = others
        .iter()
        .find(|process| process.inner == worker.pid())
        .expect("the worker");
    kill(Pid::from_raw(own.pid), Signal::SIGUSR1).expect("signal");
    let state = worker.when("its end", |state| state.phase() == Phase::Exited);
    assert_eq!(
        (state.exit_code, state.detail.as_str()),
        (3, "worker exited with code 3")
    );
    assert_eq!(worker.rig.others(), slice::from_ref(&standby));
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), standby.inner);
}

#[test]
fn what_a_standby_has_started_is_spared_with_it_and_goes_with_it() {
    let text = PATIENT.replace("import slow", "import spawner");
    let mut worker = Program::new(&text).module("spawner", SPAWNER).start();
    for order in [stop, at_once] {
        worker.ready();
        let standby = worker.standby();
        let [child] = standby.children()[..] else {
            panic!("children: {:?}", standby.children())
        };
        worker.stop_by(order);
        let left: Vec<i32> = worker.rig.others().iter().map(|process| process.pid).collect();
        assert_eq!(left, [standby.pid, child]);
        assert!(is_from_standby(worker.release()));
        assert_eq!(worker.pid(), standby.inner);
    }
    worker.ready();
    let standby = worker.standby();
    let [child] = standby.children()[..] else {
        panic!("children: {:?}", standby.children())
    };
    standby.kill();
    eventually("the end of its child", || {
        let others = worker.rig.others();
        others.iter().all(|process| process.pid != child).then_some(())
    });
}
