//! Ranks that a launcher starts, from standbys and without: the launcher sees no difference.

mod signals;
mod starts;
mod storm;
mod wrappers;

use std::fs;

use lockstep_proto::agent::v1::{Phase, State, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rig::*;

const PYTHON: &str = "/usr/bin/python3";

/// A launcher and its ranks.
struct Job {
    rig: Rig,
    daemon: Daemon,
    /// What was last heard of the agent.
    last: State,
    attempt: u64,
    orders: u32,
}

fn asked(target: Target) -> Target {
    Target {
        heartbeat_timeout_ms: 600_000,
        ..target
    }
}

/// How a job is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Hooked,
}

impl Job {
    /// Starts a launcher of this number of ranks; `session`: each in a session of its own.
    fn start(way: Way, ranks: u32, session: bool) -> Self {
        Self::under(way, ranks, session, &[])
    }

    fn under(way: Way, ranks: u32, session: bool, wrapper: &[&str]) -> Self {
        let count = ranks.to_string();
        let session = if session { "session" } else { "" };
        let setup = command(&[PYTHON, "torchrun", &count, session]).under(wrapper);
        let setup = match way {
            Way::Plain => setup,
            Way::Hooked => setup.with_standby(),
        };
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("torchrun"), include_str!("ranks/torchrun.py")).expect("torchrun");
        fs::write(dir.path().join("rank.py"), include_str!("ranks/rank.py")).expect("rank.py");
        Self::begin(setup.with_heartbeat().start_in(dir))
    }

    fn begin(rig: Rig) -> Self {
        let mut daemon = rig.accept();
        daemon.send(asked(first()));
        let last = daemon.until(Phase::Running, 0);
        Self {
            rig,
            daemon,
            last,
            attempt: 0,
            orders: 0,
        }
    }

    /// The second attempt of a hooked job, with all ranks from standbys.
    fn from_standbys(ranks: u32, session: bool) -> Self {
        let mut job = Self::start(Way::Hooked, ranks, session);
        job.await_up(ranks);
        job.await_standbys(1 + ranks);
        job.restart();
        job.await_up(ranks);
        let starts = job.state(|state| {
            state
                .starts
                .is_some_and(|starts| starts.standby + starts.cold == 1 + ranks)
        });
        let starts = starts.starts.expect("starts");
        assert_eq!((starts.standby, starts.cold), (1 + ranks, 0));
        job
    }

    /// The state, once it is as wanted.
    fn state(&mut self, wanted: impl Fn(&State) -> bool) -> State {
        while !wanted(&self.last) {
            self.last = self.daemon.state().expect("a state");
        }
        self.last.clone()
    }

    fn await_standbys(&mut self, count: u32) -> State {
        self.state(|state| {
            state
                .standbys
                .as_ref()
                .is_some_and(|standbys| standbys.ready == count)
        })
    }

    /// How many processes of the attempt before had been started from standbys.
    fn restart(&mut self) -> u32 {
        self.attempt += 1;
        self.orders = 0;
        let Target { grace_ms, .. } = stop_hard(self.attempt);
        self.daemon.send(asked(stop_hard(self.attempt)));
        let parked = self.daemon.until(Phase::Parked, self.attempt);
        self.daemon.send(asked(Target {
            grace_ms,
            ..release(self.attempt)
        }));
        self.last = self.daemon.until(Phase::Running, self.attempt);
        parked.starts.map_or(0, |starts| starts.standby)
    }

    fn name(&self, what: &str, rank: u32) -> String {
        format!("{what}.{}.{rank}", self.attempt)
    }

    fn await_up(&self, ranks: u32) {
        for rank in 0..ranks {
            self.rig.await_file(&self.name("up", rank));
        }
    }

    fn read(&self, what: &str, rank: u32) -> String {
        fs::read_to_string(self.rig.path(&self.name(what, rank))).expect("read")
    }

    fn write(&self, name: &str, text: &str) {
        let fresh = self.rig.path("fresh");
        fs::write(&fresh, text).expect("write");
        fs::rename(fresh, self.rig.path(name)).expect("rename");
    }

    /// Has a rank run a text.
    fn tell(&self, rank: u32, text: &str) {
        self.write(&self.name("rank", rank), text);
    }

    /// Has the launcher run a text, to the end.
    fn launcher(&mut self, text: &str) {
        let name = self.name("do", self.orders);
        self.write(&name, text);
        self.rig.await_file(&self.name("did", self.orders));
        self.orders += 1;
    }

    /// The return code that the launcher has seen.
    fn end(&self, rank: u32) -> String {
        let name = self.name("end", rank);
        self.rig.await_file(&name);
        fs::read_to_string(self.rig.path(&name)).expect("read")
    }

    /// PID of a rank in its namespace, and how many modules it began with.
    fn rank(&self, rank: u32) -> (i32, u32) {
        let text = self.read("pid", rank);
        let (pid, ahead) = text.split_once(' ').expect("two numbers");
        (pid.parse().expect("a number"), ahead.parse().expect("a number"))
    }

    fn is_there(&self, pid: i32) -> bool {
        self.rig
            .others()
            .iter()
            .any(|process| process.inner == pid && !process.zombie)
    }

    fn await_gone(&self, pid: i32) {
        eventually("the end of a process", || (!self.is_there(pid)).then_some(()));
    }

    /// What was started as a standby, whether or not it waits.
    fn standbys(&self) -> Vec<Process> {
        let waits = |process: &Process| {
            let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable.starts_with(b"LOCKSTEP_HOOK=1;wait;"))
        };
        let mut found = self.rig.others();
        found.retain(waits);
        found
    }

    /// The stand-ins that are there.
    fn shims(&self) -> Vec<Process> {
        let mut found = self.rig.others();
        found.retain(|process| process.command.contains("/hook/python "));
        found
    }
}

/// The same jobs: without the agent's help, through it without standbys, and from standbys.
fn three_ways(ranks: u32, session: bool, check: impl Fn(&mut Job, &str)) {
    for way in [Way::Plain, Way::Hooked] {
        let mut job = Job::start(way, ranks, session);
        job.await_up(ranks);
        check(&mut job, &format!("{way:?}, {session}"));
    }
    check(
        &mut Job::from_standbys(ranks, session),
        &format!("from standbys, {session}"),
    );
}

#[test]
fn the_launcher_sees_how_each_rank_ends() {
    let ends = [
        ("sys.exit(0)", "0"),
        ("sys.exit(3)", "3"),
        ("os._exit(300)", "44"),
        ("raise ValueError('odd')", "1"),
        ("os.kill(os.getpid(), 9)", "-9"),
        ("os.kill(os.getpid(), 15)", "-15"),
        ("os.abort()", "-6"),
        ("os.kill(os.getpid(), 11)", "-11"),
    ];
    let count = u32::try_from(ends.len()).expect("few");
    three_ways(count, false, |job, way| {
        for (rank, (text, _)) in (0..).zip(ends) {
            job.tell(rank, text);
        }
        for (rank, (text, end)) in (0..).zip(ends) {
            assert_eq!(job.end(rank), end, "{text} {way}");
        }
        let name = format!("a line of {}.3\nTraceback", job.attempt);
        assert!(job.read("out", 3).starts_with(&name), "{}", job.read("out", 3));
        assert!(job.read("out", 3).ends_with("ValueError: odd\n"));
        assert_eq!(job.read("out", 0), format!("a line of {}.0\n", job.attempt));
        assert_eq!(job.rig.out(), "");
    });
}

#[test]
fn a_rank_sees_what_it_would_see_without_the_agent() {
    let seen = |job: &Job, rank| {
        let (text, dir) = (job.read("saw", rank), job.rig.dir.path());
        // What differs by itself.
        text.replace(dir.to_str().expect("a path"), "DIR")
            .replace(&format!("ATTEMPT\": \"{}\"", job.attempt), "ATTEMPT")
            .replace(&format!("run {}", job.attempt), "RUN")
            .replace(&job.name("out", rank), "OUT")
    };
    for session in [false, true] {
        let plain = Job::start(Way::Plain, 2, session);
        plain.await_up(2);
        let hooked = Job::start(Way::Hooked, 2, session);
        hooked.await_up(2);
        let standby = Job::from_standbys(2, session);
        for rank in 0..2 {
            assert!(seen(&plain, rank).contains(&format!("\"RANK\": \"{rank}\"")));
            assert_eq!(seen(&hooked, rank), seen(&plain, rank));
            // It leads a group of its own.
            let group = |text: String| text.replace("\"leads\": false", "\"leads\": true");
            assert_eq!(group(seen(&standby, rank)), group(seen(&plain, rank)));
            assert!(
                standby.rank(rank).1 > plain.rank(rank).1 + 20,
                "nothing was imported ahead"
            );
        }
    }
}

#[test]
fn only_the_rank_leaves_a_core_dump() {
    let dumps = |job: &Job| {
        let files = fs::read_dir(job.rig.dir.path()).expect("the folder");
        let names = files.map(|file| file.expect("a file").file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("core"))
            .count()
    };
    // Where the kernel puts them elsewhere, there is none for either.
    let mut found = Vec::new();
    for way in [Way::Plain, Way::Hooked] {
        let mut job = Job::under(way, 1, false, &["prlimit", "--core=unlimited"]);
        job.await_up(1);
        if way == Way::Hooked {
            job.await_standbys(2);
            assert_eq!(job.restart(), 0);
            job.await_up(1);
            assert_eq!(job.shims().len(), 1);
        }
        job.tell(0, "os.abort()");
        assert_eq!(job.end(0), "-6");
        found.push(dumps(&job));
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_child_of_a_rank_outlives_it_until_the_stop() {
    let fork = "
child = subprocess.Popen(['sleep', '1000'])
tell('child.' + NAME, child.pid)
os._exit(5)
";
    three_ways(1, false, |job, way| {
        job.tell(0, fork);
        assert_eq!(job.end(0), "5", "{way}");
        let child: i32 = job.read("child", 0).parse().expect("a number");
        assert!(job.is_there(child));
        job.restart();
        assert!(!job.is_there(child), "{way}");
        job.await_up(1);
    });
}

#[test]
fn a_pipe_ends_with_the_rank_and_its_input_is_the_launchers() {
    let piped = "
process = subprocess.Popen([os.getenv('PYTHON_EXEC', sys.executable), '-c', 'import os; os.write(1, os.read(0, 9)); os.close(1); os.close(2); os.read(0, 9)'],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
process.stdin.write(b'hello')
process.stdin.flush()
tell('piped.%s.0' % attempt, process.stdout.read())
process.stdin.close()
tell('code.%s.0' % attempt, process.wait())
";
    let check = |job: &mut Job, way: &str| {
        job.launcher(piped);
        assert_eq!(job.read("piped", 0), "b'hello'", "{way}");
        assert_eq!(job.read("code", 0), "0", "{way}");
    };
    three_ways(1, false, check);
    // What runs once the worker is up has a standby, too.
    let mut job = Job::start(Way::Hooked, 1, false);
    job.await_up(1);
    job.await_standbys(2);
    check(&mut job, "hooked");
    job.await_standbys(3);
    job.restart();
    job.await_up(1);
    check(&mut job, "from standbys");
    job.state(|state| {
        state
            .starts
            .is_some_and(|starts| starts.standby == 3 && starts.cold == 0)
    });
}

#[test]
fn ranks_of_a_dead_launcher_are_killed_with_the_attempt() {
    let mut job = Job::from_standbys(3, true);
    let ranks: Vec<i32> = (0..3).map(|rank| job.rank(rank).0).collect();
    assert_eq!(job.shims().len(), 3);
    job.write(&job.name("do", 0), "os.kill(os.getpid(), 9)");
    job.daemon.until(Phase::Exited, 1);
    for rank in ranks {
        job.await_gone(rank);
    }
    eventually("no stand-ins", || job.shims().is_empty().then_some(()));
    job.restart();
    job.await_up(3);
}

#[test]
fn a_stop_is_seen_once_and_waits_for_every_rank() {
    let handler = "
def on(number, frame):
    with open('terms.' + NAME, 'a') as file:
        file.write('x')
signal.signal(signal.SIGTERM, on)
";
    let mut job = Job::from_standbys(2, false);
    // The launcher passes nothing on.
    job.launcher("signal.signal(signal.SIGTERM, lambda *_: None)");
    job.tell(0, handler);
    job.rig.await_file(&job.name("did.rank", 0));
    job.daemon.send(asked(Target {
        grace_ms: 500,
        ..stop(2)
    }));
    job.daemon.until(Phase::Parked, 2);
    assert_eq!(job.read("terms", 0), "x");
    let left: Vec<Process> = job.rig.others();
    assert!(
        left.iter()
            .all(|process| process.command.contains("rank.py") || process.command.contains("torchrun")),
        "{left:?}"
    );
    assert_eq!(job.shims(), []);
}

#[test]
fn a_leaving_agent_ends_all_standbys() {
    let mut job = Job::start(Way::Hooked, 2, false);
    job.await_up(2);
    job.await_standbys(3);
    job.launcher("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))");
    job.rig.signal(Signal::SIGTERM);
    assert_eq!(job.rig.exit_code(), 0);
}

/// Kills a process of the rig, by its PID in there.
fn kill_inner(rig: &Rig, inner: i32) {
    for process in rig.others() {
        if process.inner == inner {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
    }
}
