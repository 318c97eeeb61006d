//! The end of the container: it has the worker's code, and no standby is left.

use std::time::Duration;

use super::*;

/// Ends with code 7 by SIGTERM.
const POLITE: &str = "
import slow
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
tell()
beat()
while True:
    signal.pause()
";

/// Starts it among the processes of the test, where what is left can be seen.
fn start(program: Program) -> Worker {
    program.start_with(Setup::without_namespace)
}

/// The standby, by its parent.
fn standby(worker: &Worker) -> Process {
    let own = worker.pid();
    eventually("a standby", || {
        let agent = Process {
            pid: worker.rig.agent(),
            inner: 0,
            command: String::new(),
            zombie: false,
        };
        let pid = agent.children().into_iter().find(|pid| *pid != own)?;
        Some(Process {
            pid,
            inner: pid,
            ..agent
        })
    })
}

fn assert_ends(mut worker: Worker, standby: &Process, code: i32) {
    assert_eq!(worker.rig.exit_code(), code);
    eventually("the end of the standby", || {
        stat_field(standby.pid, 0)
            .is_none_or(|state| state == "Z")
            .then_some(())
    });
    worker.assert_no_complaints();
    let err = worker.rig.err();
    assert!(!err.contains("no standby"), "{err}");
}

#[test]
fn a_container_that_ends_leaves_no_standby_that_waits() {
    let mut worker = start(Program::new(POLITE));
    worker.ready();
    let standby = standby(&worker);
    worker.rig.signal(Signal::SIGTERM);
    assert_ends(worker, &standby, 7);
}

#[test]
fn a_container_that_ends_leaves_no_standby_that_imports() {
    let stuck = "import os, time\nif open('/proc/self/oom_score_adj').read() == '1000\\n':\n    open('importing', 'x').close()\n    time.sleep(1000)";
    let worker =
        start(Program::new(&POLITE.replace("tell()", "import stuck\ntell()")).module("stuck", stuck));
    worker.rig.await_file("importing");
    let standby = standby(&worker);
    worker.rig.signal(Signal::SIGTERM);
    assert_ends(worker, &standby, 7);
}

#[test]
fn a_container_that_ends_while_it_is_parked_leaves_no_standby() {
    let mut worker = start(Program::new(POLITE));
    worker.ready();
    let standby = standby(&worker);
    worker.stop();
    worker.rig.signal(Signal::SIGTERM);
    assert_ends(worker, &standby, 143);
}

#[test]
fn a_worker_that_is_done_leaves_no_standby() {
    let text = POLITE.replace(
        "signal.pause()",
        "time.sleep(0.01)\n    if os.path.exists('done'): break",
    );
    let mut worker = start(Program::new(&text));
    worker.ready();
    let standby = standby(&worker);
    fs::write(worker.rig.path("done"), "").expect("write");
    assert_ends(worker, &standby, 0);
}

#[test]
fn a_container_that_ends_while_the_standby_is_released_runs_at_most_one_worker() {
    for round in 0..5 {
        let mut worker = start(Program::new(POLITE));
        worker.ready();
        let standby = standby(&worker);
        worker.stop();
        worker.order(release(1));
        std::thread::sleep(Duration::from_millis(2 * round));
        worker.rig.signal(Signal::SIGTERM);
        let code = worker.rig.exit_code();
        // By the signal itself, or by the handler that the program has set by then.
        assert!(code == 143 || code == 7, "{code}");
        eventually("the end of the standby", || {
            stat_field(standby.pid, 0)
                .is_none_or(|state| state == "Z")
                .then_some(())
        });
        worker.assert_no_complaints();
    }
}
