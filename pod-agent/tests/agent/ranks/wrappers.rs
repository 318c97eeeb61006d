//! Workers that are no Python, but start it by its name: the script sees no difference.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// Where the names are looked up: the machine's own interpreter, and launchers that a test makes.
const PATH: &str = "PATH=bin:/usr/bin:/bin";
/// The tests may run with more descriptors than the standard streams. A container's first process
/// does not.
const ONLY_STREAMS: &str =
    "for fd in /proc/self/fd/*; do fd=${fd##*/}; ((fd < 3)) || eval \"exec $fd>&-\"; done; exec \"$@\"";
/// Runs the program of the tests, and writes down how it has ended.
const PLAIN: &str = "python3 -u rank.py 'a b' ''
echo $? > end.new; mv end.new end.$LOCKSTEP_RESTART_ATTEMPT.0; exec sleep 1000";

impl Job {
    /// Starts a script in a shell.
    fn wrapped(way: Way, script: &str) -> Self {
        let wrapper = [
            "bash",
            "-c",
            ONLY_STREAMS,
            "bash",
            "env",
            PATH,
            "BEATS=1",
            "RANK=0",
        ];
        let setup = command(&["sh", "-c", script]).under(&wrapper);
        let setup = match way {
            Way::Plain => setup,
            Way::Hooked => setup.with_standby(),
        };
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("rank.py"), include_str!("rank.py")).expect("rank.py");
        fs::create_dir(dir.path().join("bin")).expect("mkdir");
        let launcher = dir.path().join("bin/torchrun");
        let text = format!("#!/usr/bin/python3\n{}", include_str!("torchrun.py"));
        fs::write(&launcher, text).expect("torchrun");
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).expect("chmod");
        Self::begin(setup.with_heartbeat().start_in(dir))
    }

    /// The second attempt of a script, with all of its `count` processes from standbys.
    fn wrapped_from_standbys(script: &str, count: u32) -> Self {
        let mut job = Self::wrapped(Way::Hooked, script);
        job.rig.await_file(&job.name("up", 0));
        let ready = job.await_standbys(count).standbys.expect("standbys");
        assert_eq!((ready.wanted, ready.reason.as_str()), (count, ""));
        job.restart();
        job.rig.await_file(&job.name("up", 0));
        let state = job.state(|state| state.starts.is_some_and(|starts| starts.standby == count));
        assert_eq!(state.starts.expect("starts").cold, 0);
        job
    }
}

#[test]
fn a_program_in_a_script_sees_what_it_would_see_without_the_agent() {
    let seen = |job: &Job| {
        job.read("saw", 0)
            .replace(job.rig.dir.path().to_str().expect("a path"), "DIR")
            .replace(&format!("ATTEMPT\": \"{}\"", job.attempt), "ATTEMPT")
            .replace("\"leads\": false", "\"leads\": true")
    };
    let exec = "umask 027; export A=1; exec python3 -u rank.py 'a b' ''";
    for script in [PLAIN, exec] {
        let plain = Job::wrapped(Way::Plain, script);
        plain.await_up(1);
        let hooked = Job::wrapped(Way::Hooked, script);
        hooked.await_up(1);
        let standby = Job::wrapped_from_standbys(script, 1);
        assert!(seen(&plain).contains("\"PATH\": \"bin:/usr/bin:/bin\""));
        assert_eq!(seen(&hooked), seen(&plain), "{script}");
        assert_eq!(seen(&standby), seen(&plain), "{script}");
        let ahead = (standby.rank(0).1, plain.rank(0).1);
        assert!(ahead.0 > ahead.1 + 20, "nothing was imported ahead: {ahead:?}");
    }
}

#[test]
fn a_script_sees_how_its_program_ends() {
    for (text, end) in [("sys.exit(3)", "3\n"), ("os.kill(os.getpid(), 9)", "137\n")] {
        let check = |job: &Job, way: &str| {
            job.tell(0, text);
            assert_eq!(job.end(0), end, "{text} {way}");
        };
        for way in [Way::Plain, Way::Hooked] {
            let job = Job::wrapped(way, PLAIN);
            job.await_up(1);
            check(&job, &format!("{way:?}"));
        }
        check(&Job::wrapped_from_standbys(PLAIN, 1), "from a standby");
    }
}

/// The script has become the program, so its end is the worker's.
#[test]
fn a_worker_ends_as_the_program_that_it_has_become() {
    let mut job = Job::wrapped_from_standbys("exec python3 -u rank.py", 1);
    job.tell(0, "os.kill(os.getpid(), 11)");
    let state = job.daemon.until(Phase::Exited, 1);
    assert_eq!(state.exit_signal, 11);
    job.restart();
    job.await_up(1);
}

/// The same with what the container runtime asks of the worker.
#[test]
fn a_signal_to_the_container_reaches_the_program_that_the_worker_has_become() {
    let mut job = Job::wrapped_from_standbys("exec python3 -u rank.py", 1);
    job.tell(0, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))");
    job.rig.await_file(&job.name("did.rank", 0));
    job.rig.signal(Signal::SIGTERM);
    assert_eq!(job.rig.exit_code(), 7);
}

#[test]
fn a_signal_to_the_container_is_kept_for_a_program_that_does_not_run_yet() {
    let mut job = Job::wrapped(Way::Hooked, "exec python3 -u rank.py");
    job.await_up(1);
    job.await_standbys(1);
    let standby = job.standbys().pop().expect("a standby");
    kill(Pid::from_raw(standby.pid), Signal::SIGSTOP).expect("stop");
    job.restart();
    let blocks = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        blocked.is_some_and(|mask| mask.trim().contains(|digit| digit != '0'))
    };
    eventually("the call", || {
        let mut others = job.rig.others().into_iter();
        others
            .any(|process| process.pid != standby.pid && blocks(process.pid))
            .then_some(())
    });
    job.rig.signal(Signal::SIGTERM);
    job.state(|state| state.detail.contains("asked to exit"));
    kill(Pid::from_raw(standby.pid), Signal::SIGCONT).expect("continue");
    assert_eq!(job.rig.exit_code(), 143);
}

#[test]
fn what_a_script_runs_first_has_no_standby() {
    let script = "python3 -c 'import asyncio'; python3 -c pass | cat; exec python3 -u rank.py";
    let mut job = Job::wrapped(Way::Hooked, script);
    job.await_up(1);
    assert_eq!(job.await_standbys(1).standbys.expect("standbys").wanted, 1);
    job.restart();
    job.await_up(1);
    let all = |state: &State| {
        let starts = state.starts?;
        (starts.standby + starts.cold == 3).then_some(starts)
    };
    let state = job.state(|state| all(state).is_some());
    assert_eq!(all(&state).expect("all").standby, 1);
}

#[test]
fn a_launcher_in_a_script_and_its_ranks_have_standbys() {
    let job = Job::wrapped_from_standbys("torchrun 2 ''", 3);
    job.await_up(2);
    let command = job.read("saw", 1);
    assert!(command.contains("\"RANK\": \"1\""), "{command}");
}

#[test]
fn a_script_that_starts_no_python_says_so() {
    let mut job = Job::wrapped(Way::Hooked, "touch up.0.0; exec sleep 1000");
    job.await_up(1);
    let state = job.state(|state| state.standbys.is_some());
    let standbys = state.standbys.expect("standbys");
    assert_eq!(standbys.reason, "sh has not started Python by its name");
    assert_eq!((standbys.wanted, standbys.ready), (0, 0));
}

/// Where the names cannot be found any more, or are called by their path, Python runs as it is.
#[test]
fn a_path_of_the_scripts_own_is_obeyed() {
    let cases = [
        ("PATH=/usr/bin:/bin; exec python3 -u rank.py", "\"/usr/bin:/bin\""),
        (
            "exec /usr/bin/python3 -u rank.py",
            "/standby/hook/path:bin:/usr/bin:/bin\"",
        ),
        (
            "PATH=$PATH/:$PATH; exec \"$(command -v python3)\" -u rank.py",
            "\"bin:/usr/bin:/bin/:bin:/usr/bin:/bin\"",
        ),
        // As some images have it.
        (
            "ln -sf \"$(which python3)\" bin/python; exec bin/python -u rank.py",
            "\"bin:/usr/bin:/bin\"",
        ),
    ];
    for (script, path) in cases {
        let job = Job::wrapped(Way::Hooked, script);
        job.await_up(1);
        let saw = job.read("saw", 0);
        assert!(saw.contains("\"executable\": \"/usr/bin/python3\""), "{saw}");
        let after = saw.split("\"PATH\": ").nth(1).expect("a PATH");
        let found = after.split(", ").next().expect("a value");
        assert!(found.ends_with(path), "{script}: {found}");
    }
}

/// Without the agent, `ln` refuses this.
#[test]
fn an_interpreter_that_is_replaced_by_a_link_to_its_stand_in_ends() {
    let script =
        "ln -sf \"$(which torchrun)\" bin/torchrun; torchrun 1 ''; echo $? > end.0.0; exec sleep 1000";
    let job = Job::wrapped(Way::Hooked, script);
    assert_eq!(job.end(0), "127\n");
    job.rig.await_err("lockstep: \"torchrun\" is a link to the agent");
}
