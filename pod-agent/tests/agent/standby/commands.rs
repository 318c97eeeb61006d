//! Workers that cannot have standbys run as without, and users read why.

use super::*;

/// Starts a worker that writes its environment to `told.0`; returns why it has no standby.
fn reason_of(worker: &[&str], wrapper: &[&str]) -> (Worker, String) {
    let mut worker = Program::new("tell(variables=sorted(os.environ))\nbeat()\nsignal.pause()")
        .start_as(worker, |setup| setup.under(wrapper));
    let state = worker.when("a reason", |state| state.standbys.is_some());
    let standbys = state.standbys.expect("standbys");
    assert_eq!((standbys.wanted, standbys.ready), (0, 0));
    worker.rig.await_file("told.0");
    let told = fs::read_to_string(worker.rig.path("told.0")).expect("read");
    assert!(
        !told.contains("LOCKSTEP_HOOK") && !told.contains("PYTHONPATH"),
        "{told}"
    );
    assert!(told.contains("LOCKSTEP_HEARTBEAT"), "{told}");
    let line = format!("lockstep: no standbys: {}\n", standbys.reason);
    assert_eq!(worker.rig.err(), line);
    (worker, standbys.reason)
}

#[test]
fn other_programs_than_python_have_no_standby() {
    let shell = "PATH=/usr/bin:/bin; env > new; mv new told.$LOCKSTEP_RESTART_ATTEMPT
touch $LOCKSTEP_HEARTBEAT; exec sleep 1000";
    // There is no Python by the name of one that it could start.
    let (mut worker, reason) = reason_of(&["/bin/sh", "-c", shell], &["env", "PATH=/missing"]);
    assert_eq!(reason, "the command is not started by Python: /bin/sh");
    worker.stop();
    assert_eq!(worker.rig.others(), []);
    worker.order(release(1));
    assert_eq!(worker.daemon.until(Phase::Running, 1).starts, None);
}

#[test]
fn an_interpreter_that_ignores_its_environment_has_no_standby() {
    let (mut worker, reason) = reason_of(&["venv/bin/python3", "-uE", "train.py"], &[]);
    assert_eq!(reason, "option -E of the interpreter excludes standbys");
    worker.stop();
    worker.order(release(1));
    worker.pid();
    worker.assert_no_complaints();
}

/// The name says Python, but it is a script, whose own commands would be run ahead.
#[test]
fn a_script_by_the_name_of_python_is_never_started_ahead() {
    let program = Program::new(PATIENT);
    let python = program.dir.path().join("python3");
    let text = "#!/bin/sh\nunset PYTHONPATH\nexec venv/bin/python3 \"$@\"\n";
    fs::write(&python, text).expect("write");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&python, mode).expect("chmod");
    let mut worker = program.start_as(&["./python3", "train.py"], |setup| setup);
    worker.reason("./python3 is a script that starts Python");
    worker.stop();
    worker.order(release(1));
    worker.pid();
    worker.assert_no_complaints();
}
