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

/// What the launcher does before it starts a rank, what the rank then prints, and the answer.
fn inheritances() -> [(String, String, &'static str); 7] {
    let call = |number: libc::c_long, arguments: &str| {
        format!("__import__('ctypes').CDLL(None).syscall({number}, {arguments})")
    };
    let own = |before: &str, ask: &str, answer| (before.to_owned(), ask.to_owned(), answer);
    [
        own(
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77))",
            "resource.getrlimit(resource.RLIMIT_NOFILE)",
            "(77, 77)",
        ),
        own("os.sched_setaffinity(0, {0})", "os.sched_getaffinity(0)", "{0}"),
        own(
            "os.nice(1)",
            "os.nice(0) > int(open('/proc/1/stat').read().split()[18])",
            "True",
        ),
        own(
            "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
            "signal.getsignal(signal.SIGHUP) == signal.SIG_IGN",
            "True",
        ),
        own(
            "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
            "os.sched_getscheduler(0) == os.SCHED_BATCH",
            "True",
        ),
        own(
            &call(libc::SYS_ioprio_set, "1, 0, 3 << 13"),
            &format!("{} >> 13", call(libc::SYS_ioprio_get, "1, 0")),
            "3",
        ),
        own(
            &call(libc::SYS_unshare, "0x04000000"),
            "os.readlink('/proc/self/ns/uts') != os.readlink('/proc/1/ns/uts')",
            "True",
        ),
    ]
}

#[test]
fn a_rank_that_inherits_something_else_starts_cold() {
    let cases = inheritances();
    let mut job = Job::start(Way::Hooked, 1, false);
    job.await_up(1);
    job.await_standbys(2);
    let run = |job: &mut Job, name: &str, alike: bool| {
        for (at, (before, ask, _)) in cases.iter().enumerate() {
            let before = if alike { "" } else { before.as_str() };
            job.launcher(&format!("
if os.fork() == 0:
    {before}
    out = subprocess.check_output([os.environ['PYTHON_EXEC'], '-c', \"\"\"import os, resource, signal; print({ask})\"\"\"])
    tell('{name}.{}.{at}', out.decode().strip())
    os._exit(0)
os.wait()
", job.attempt));
        }
    };
    // As they are, they have standbys.
    run(&mut job, "alike", true);
    let count = 2 + u32::try_from(cases.len()).expect("few");
    job.await_standbys(count);
    run(&mut job, "other", false);
    for (at, (before, _, answer)) in (0..).zip(&cases) {
        assert_eq!(job.read("other", at), *answer, "{before}");
        assert_ne!(job.read("alike", at), *answer, "{before}");
    }
    let state = job.await_standbys(count);
    assert_eq!(state.standbys.expect("standbys").wanted, count);
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
