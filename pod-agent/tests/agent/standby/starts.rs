//! The first attempt is cold, and the next ones begin from standbys.

use std::time::{Duration, Instant};

use super::*;

/// Tells what must not depend on how it was started.
const OPEN: &str = r#"
variables = {n: v for n, v in os.environ.items() if n != "LOCKSTEP_RESTART_ATTEMPT"}
child = subprocess.run(["sh", "-c", 'echo "$LOCKSTEP_RESTART_ATTEMPT $LOCKSTEP_HOOK${PYTHONPATH-unset}"'], capture_output=True, text=True)
finders = [type(finder).__name__ for finder in sys.meta_path if type(finder).__name__ != "Learner"]
import slow
tell(
    arguments=sys.argv, path=sys.path, variables=sorted(variables.items()), open=OPEN, child=child.stdout.strip(),
    main=sorted(sys.modules["__main__"].__dict__), flags=sys.flags, folder=os.getcwd(), finders=finders,
    group=os.getpgid(0) == os.getpid(), parent=os.getppid(), mask=signal.pthread_sigmask(signal.SIG_BLOCK, []),
    interrupt=signal.getsignal(signal.SIGINT), score=open("/proc/self/oom_score_adj").read().strip(),
)
print("attempt", ATTEMPT, "of", sys.argv[1:])
print("trouble", file=sys.stderr)
beat()
signal.pause()
"#;
const SAME: [&str; 13] = [
    "arguments",
    "path",
    "variables",
    "open",
    "main",
    "flags",
    "folder",
    "finders",
    "group",
    "parent",
    "mask",
    "interrupt",
    "score",
];

#[test]
fn a_restart_goes_on_from_the_standby_and_sees_the_same() {
    let mut worker = Program::new(OPEN).start();
    let state = worker.ready();
    assert_eq!(state.starts, Some(cold()));
    let standbys = state.standbys.expect("standbys");
    assert_eq!((standbys.wanted, standbys.reason.as_str()), (1, ""));
    assert!(standbys.modules > 0 && standbys.memory_kib > 1000, "{standbys:?}");

    let first = SAME.map(|name| worker.told(name));
    assert_eq!(worker.told("child"), "0 unset");
    assert!(!worker.found_imported("slow"));
    for generation in 1..=3 {
        let standby = worker.standby();
        let starts = worker.restart();
        assert!(is_from_standby(starts) && starts.ahead_ms >= 100, "{starts:?}");
        assert_eq!(worker.pid(), standby.inner, "the worker is not the standby");
        for (name, first) in SAME.iter().zip(&first) {
            assert_eq!(worker.told(name), *first, "{name}");
        }
        assert_eq!(worker.told("child"), format!("{generation} unset"));
        assert!(worker.found_imported("slow"));
        worker.ready();
    }
    worker.assert_no_complaints();
    let lines: Vec<String> = (0..=3)
        .map(|at| format!("attempt {at} of ['--lr', '0.1']\n"))
        .collect();
    assert_eq!(worker.rig.out(), lines.concat());
    let err = worker.rig.err();
    assert_eq!(err.matches("trouble\n").count(), 4, "{err}");
    assert_eq!(
        err.matches("lockstep: a standby is ready for the next attempt: ")
            .count(),
        4,
        "{err}"
    );
    assert_eq!(err.lines().count(), 8, "{err}");
}

#[test]
fn what_is_imported_ahead_takes_no_time() {
    let mut worker = Program::new(PATIENT).start();
    let took = |worker: &mut Worker| -> Duration {
        worker.stop();
        let began = Instant::now();
        worker.release();
        worker.pid();
        began.elapsed()
    };
    // The second is cold, too: there was nothing to be ready yet.
    worker.ready();
    worker.standby().kill();
    worker.reason("killed by signal 9");
    let cold = took(&mut worker);
    worker.ready();
    let ahead = took(&mut worker);
    println!(
        "cold {cold:?}, from a standby {ahead:?}: {:.1} times as fast",
        cold.as_secs_f64() / ahead.as_secs_f64()
    );
    assert!(worker.found_imported("slow"));
}

#[test]
fn a_program_that_has_changed_runs_in_its_new_form() {
    let mut worker = Program::new(PATIENT).start();
    worker.ready();
    let text = PATIENT.replace("tell()", "tell(form='new')");
    fs::write(worker.rig.path("train.py"), format!("{PRELUDE}{text}")).expect("write");
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.told("form"), "new");
}

#[test]
fn a_restart_does_not_wait_for_a_standby_that_imports() {
    let slowly = "import os, time\nwhile os.path.exists('slowly'): time.sleep(0.01)";
    let text = PATIENT.replace(
        "tell()",
        "import slowly\ntell()\nwhile not os.path.exists('up'): time.sleep(0.01)",
    );
    let mut worker = Program::new(&text).module("slowly", slowly).start();
    worker.pid();
    fs::write(worker.rig.path("slowly"), "").expect("write");
    fs::write(worker.rig.path("up"), "").expect("write");
    let standby = worker.standby();
    worker.stop();
    fs::remove_file(worker.rig.path("slowly")).expect("go on");
    // It may be ready by now.
    let starts = worker.release();
    if starts == cold() {
        assert_eq!(worker.standby().pid, standby.pid, "it was ended by the restart");
        worker.ready();
        assert!(is_from_standby(worker.restart()));
    }
    assert_eq!(worker.pid(), standby.inner);
    worker.assert_no_complaints();
}

#[test]
fn descriptors_of_the_agent_stay_its_own() {
    let mut worker = Program::new(PATIENT).start();
    worker.ready();
    let kinds = |pid: i32| {
        let folder = format!("/proc/{pid}/fd");
        let mut kinds: Vec<String> = fs::read_dir(folder)
            .expect("fd")
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .map(|target| {
                target
                    .to_string_lossy()
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            })
            .filter(|target| !target.starts_with(&worker.rig.dir.path().display().to_string()))
            .collect();
        kinds.sort();
        kinds
    };
    // What the runtime has given to the agent.
    let given = kinds(parent_of(worker.rig.agent()));
    let of = |inner: i32| {
        worker
            .rig
            .others()
            .into_iter()
            .find(|process| process.inner == inner)
    };
    assert_eq!(kinds(of(worker.pid()).expect("the worker").pid), given);
    // And its output while it imports, the list and the socket.
    let mut own = given;
    own.extend(["/dev/null", "/memfd", "socket"].map(str::to_owned));
    own.sort();
    assert_eq!(kinds(worker.standby().pid), own);
}
