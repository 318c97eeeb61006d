//! Which ranks start from standbys, and which do not.

use std::path::Path;

use super::*;

#[test]
fn other_ranks_than_before_start_cold_and_standbys_follow() {
    let mut job = Job::start(Way::Hooked, 2, false);
    job.await_up(2);
    job.await_standbys(3);
    job.restart();
    job.await_up(2);
    // A third one, beside the two that there are.
    job.launcher("start(2)");
    job.rig.await_file("up.1.2");
    let state = job.state(|state| {
        state
            .starts
            .is_some_and(|starts| starts.standby + starts.cold == 4)
    });
    assert_eq!(state.starts.expect("starts").cold, 1);
    job.await_standbys(4);
}

#[test]
fn a_rank_that_inherits_something_else_starts_cold() {
    let mut job = Job::start(Way::Hooked, 1, false);
    job.await_up(1);
    job.await_standbys(2);
    job.restart();
    job.await_up(1);
    job.await_standbys(2);
    let cases = [
        (
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77))",
            "resource.getrlimit(resource.RLIMIT_NOFILE)",
            "(77, 77)",
        ),
        ("os.sched_setaffinity(0, {0})", "os.sched_getaffinity(0)", "{0}"),
        (
            "os.environ['NICE'] = str(os.nice(1))",
            "str(os.nice(0)) == os.getenv(\"NICE\")",
            "True",
        ),
        (
            "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
            "signal.getsignal(signal.SIGHUP) == signal.SIG_IGN",
            "True",
        ),
    ];
    for (at, (before, ask, answer)) in (0..).zip(cases) {
        job.launcher(&format!("
if os.fork() == 0:
    {before}
    out = subprocess.check_output([os.environ['PYTHON_EXEC'], '-c', 'import os, resource, signal; print({ask})'])
    tell('case.1.{at}', out.decode().strip())
    os._exit(0)
os.wait()
"));
        assert_eq!(job.read("case", at), answer);
    }
}

#[test]
fn an_interpreter_that_the_user_names_is_left_alone() {
    let mut job = Job::under(Way::Hooked, 1, false, &["env", "PYTHON_EXEC=/usr/bin/python3"]);
    job.await_up(1);
    assert_eq!(job.shims(), []);
    assert!(
        job.read("saw", 0)
            .contains("\"PYTHON_EXEC\": \"/usr/bin/python3\"")
    );
    job.await_standbys(1);
    job.restart();
    job.await_up(1);
    let starts = job.state(|state| state.starts.is_some()).starts.expect("starts");
    assert_eq!((starts.standby, starts.cold), (1, 0));
}

#[test]
fn a_program_without_the_agent_runs_as_it_is() {
    let dir = tempfile::tempdir().expect("tempdir");
    let shim = dir.path().join("python");
    std::os::unix::fs::symlink(AGENT, &shim).expect("link");
    let run = |shim: &Path, python: Option<&str>| {
        let mut command = std::process::Command::new(shim);
        command.args([
            "-c",
            "import os, sys; print(sys.executable, [n for n in os.environ if 'PYTHON' in n]); sys.exit(7)",
        ]);
        command.env_clear().env("PYTHON_EXEC", shim);
        command.envs(python.map(|python| ("LOCKSTEP_PYTHON_EXEC", python)));
        let output = command.output().expect("run");
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("text"),
        )
    };
    let (code, text) = run(&shim, Some(PYTHON));
    assert_eq!((code, text.as_str()), (Some(7), "/usr/bin/python3 []\n"));
    assert_eq!(run(&shim, None).0, Some(127));
    assert_eq!(run(&shim, Some("/missing")).0, Some(127));
}
