//! Workers in Python whose next attempt begins from a standby: in the hook, or in the program's own
//! call `park()`.
//!
//! Each worker is a program in a virtual environment of its own. It tells by files what it sees,
//! and notices a second worker beside it.

mod commands;
mod ends;
mod kills;
mod memory;
mod often;
mod park;
mod refusals;
mod starts;
mod stops;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lockstep_proto::agent::v1::{Phase, Starts, State, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::rig::*;

/// What each program begins with. `tell` makes the file `told.<attempt>`, `beat` gives the
/// heartbeat.
const PRELUDE: &str = r#"
import sys
BEFORE = set(sys.modules)
import fcntl, os, signal, subprocess, time
ATTEMPT = os.environ["LOCKSTEP_RESTART_ATTEMPT"]

def complain(what):
    with open("complaints", "a") as file:
        print(ATTEMPT, os.getpid(), what, file=file)

def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink("/proc/self/fd/" + number).split(":")[0]
        except OSError:
            pass
    return sorted(found.items())

OPEN = descriptors()
alive = open("alive", "w")
try:
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(os.open("once." + ATTEMPT, os.O_CREAT | os.O_EXCL))
except OSError as error:
    complain(error)

def tell(**told):
    told.update(pid=os.getpid(), ahead=" ".join(sorted(BEFORE)))
    with open("new", "w") as file:
        for name, value in told.items():
            print(name, value, sep="=", file=file)
    os.rename("new", "told." + ATTEMPT)

def beat():
    os.utime(os.environ["LOCKSTEP_HEARTBEAT"])
"#;

/// Takes a noticeable time to import.
const SLOW: &str = "
import time
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
";

/// A program that imports `slow`, gives its heartbeat and runs until it is ended.
const PATIENT: &str = "
import slow
tell()
beat()
while True:
    signal.pause()
";

/// In the environment with which a program that parks is started, as worker or standby.
const PARK: &[u8] = b"LOCKSTEP_PARK=";
/// In that of a worker.
const ATTEMPT: &[u8] = b"LOCKSTEP_RESTART_ATTEMPT=";

/// The real interpreter that `python3` is, and the name of its folder in `lib`.
fn interpreter() -> (&'static Path, &'static str) {
    static FOUND: OnceLock<(PathBuf, String)> = OnceLock::new();
    let (path, name) = FOUND.get_or_init(|| {
        let text = "import os, sys; print(os.path.realpath(sys.executable)); print('python%d.%d' % sys.version_info[:2])";
        let run = Command::new("python3").args(["-I", "-c", text]).output();
        let lines = String::from_utf8(run.expect("python3").stdout).expect("text");
        let (path, name) = lines.trim().split_once('\n').expect("two lines");
        (path.into(), name.to_owned())
    });
    (path, name)
}

/// A program that is not started yet.
struct Program {
    dir: TempDir,
    silence_ms: u32,
}

impl Program {
    fn new(text: &str) -> Self {
        let (python, name) = interpreter();
        let program = Self {
            dir: tempfile::tempdir().expect("tempdir"),
            silence_ms: 600_000,
        };
        let venv = program.dir.path().join("venv");
        fs::create_dir_all(venv.join("lib").join(name).join("site-packages")).expect("mkdir");
        fs::create_dir(venv.join("bin")).expect("mkdir");
        symlink(python, venv.join("bin/python3")).expect("link");
        let home = python.parent().expect("a folder").display();
        let config = format!("home = {home}\ninclude-system-site-packages = false\n");
        fs::write(venv.join("pyvenv.cfg"), config).expect("write");
        fs::write(program.dir.path().join("train.py"), format!("{PRELUDE}{text}")).expect("write");
        program.module("slow", SLOW)
    }

    /// Installs a module.
    fn module(self, name: &str, text: &str) -> Self {
        let folder = self.dir.path().join("venv/lib").join(interpreter().1);
        fs::write(folder.join("site-packages").join(format!("{name}.py")), text).expect("write");
        self
    }

    /// Gives heartbeats all the time, so that the agent looks for them often.
    fn lively(text: &str) -> Self {
        let loops = "    beat()\n    time.sleep(0.02)";
        Self {
            silence_ms: 200,
            ..Self::new(&text.replace("    signal.pause()", loops))
        }
    }

    /// Starts it as the container does, and releases generation 0.
    fn start(self) -> Worker {
        self.start_with(|setup| setup)
    }

    fn start_with(self, change: impl FnOnce(Setup) -> Setup) -> Worker {
        self.start_as(&["venv/bin/python3", "-u", "train.py", "--lr", "0.1"], change)
    }

    fn start_as(self, worker: &[&str], change: impl FnOnce(Setup) -> Setup) -> Worker {
        self.start_up(change(command(worker).with_standby()))
    }

    fn start_up(self, setup: Setup) -> Worker {
        let setup = setup.with_heartbeat();
        let rig = setup.start_in(self.dir);
        let daemon = rig.accept();
        let mut worker = Worker {
            rig,
            daemon,
            generation: 0,
            silence_ms: self.silence_ms,
        };
        worker.order(first());
        worker.daemon.until(Phase::Running, 0);
        worker
    }
}

/// A worker that runs.
struct Worker {
    rig: Rig,
    daemon: Daemon,
    generation: u64,
    silence_ms: u32,
}

impl Worker {
    /// Gives this order to a worker whose first heartbeat says that it is up.
    fn order(&mut self, target: Target) {
        self.daemon.send(Target {
            heartbeat_timeout_ms: self.silence_ms,
            ..target
        });
    }

    /// The next state for which `check` holds.
    fn when(&mut self, what: &str, check: impl Fn(&State) -> bool) -> State {
        let mut last = None;
        loop {
            let Some(state) = self.daemon.state() else {
                panic!("closed before {what}, after {last:?}")
            };
            if check(&state) {
                return state;
            }
            last = Some(state);
        }
    }

    /// Waits until a standby is ready.
    fn ready(&mut self) -> State {
        self.when("a standby", |state| {
            state
                .standbys
                .as_ref()
                .is_some_and(|standbys| standbys.ready == 1)
        })
    }

    /// Waits until it is reported why there is no standby.
    fn reason(&mut self, text: &str) -> State {
        self.when(text, |state| {
            let standbys = state.standbys.as_ref();
            standbys.is_some_and(|standbys| standbys.ready == 0 && standbys.reason.contains(text))
        })
    }

    /// Stops it, and waits until it is parked.
    fn stop(&mut self) {
        self.stop_by(stop);
    }

    fn stop_by(&mut self, order: fn(u64) -> Target) {
        self.generation += 1;
        self.order(order(self.generation));
        self.daemon.until(Phase::Parked, self.generation);
    }

    /// Releases it, and returns how it was started.
    fn release(&mut self) -> Starts {
        self.order(release(self.generation));
        let state = self.daemon.until(Phase::Running, self.generation);
        state.starts.expect("how it was started")
    }

    fn restart(&mut self) -> Starts {
        self.stop();
        self.release()
    }

    /// Something that this attempt has told.
    fn told(&self, name: &str) -> String {
        let file = format!("told.{}", self.generation);
        self.rig.await_file(&file);
        let text = fs::read_to_string(self.rig.path(&file)).expect("what it told");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// The PID of this attempt in its namespace.
    fn pid(&self) -> i32 {
        self.told("pid").parse().expect("a number")
    }

    /// True if this attempt found a module imported already.
    fn found_imported(&self, module: &str) -> bool {
        self.told("ahead").split(' ').any(|name| name == module)
    }

    /// The standby beside the worker that runs.
    fn standby(&self) -> Process {
        let worker = self.pid();
        eventually("the process of a standby", || self.find_standby(worker))
    }

    fn find_standby(&self, worker: i32) -> Option<Process> {
        let waits = |process: &Process| {
            let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            let parks = environment.windows(PARK.len()).any(|part| part == PARK)
                && !environment.windows(ATTEMPT.len()).any(|part| part == ATTEMPT);
            parks || variables.any(|variable| variable.starts_with(b"LOCKSTEP_HOOK=1;wait;"))
        };
        let mut others = self.rig.others().into_iter();
        others.find(|process| {
            process.inner != worker && parent_of(process.pid) == self.rig.agent() && waits(process)
        })
    }

    /// No second worker ran beside another, and each attempt ran once.
    fn assert_no_complaints(&self) {
        let complaints = fs::read_to_string(self.rig.path("complaints")).unwrap_or_default();
        assert_eq!(complaints, "");
    }
}

impl Process {
    fn kill(&self) {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).expect("kill");
    }

    /// The PIDs of its children, here.
    fn children(&self) -> Vec<i32> {
        let file = format!("/proc/{0}/task/{0}/children", self.pid);
        let text = fs::read_to_string(file).unwrap_or_default();
        text.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }
}

fn parent_of(pid: i32) -> i32 {
    stat_field(pid, 1)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}

/// One process, and not from a standby.
fn cold() -> Starts {
    Starts {
        cold: 1,
        ..Starts::default()
    }
}

/// True if it was started from a standby, and not cold.
fn is_from_standby(starts: Starts) -> bool {
    (starts.standby, starts.cold) == (1, 0)
}
