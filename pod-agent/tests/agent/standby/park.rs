//! Programs that park themselves, by the library and without it.

use super::*;

/// The call of the library, before all else.
const BY_LIBRARY: &str = r#"
import sys
from lockstep import worker
assert not any(name.split(".")[0] in ("grpc", "google") for name in sys.modules)
print("before")
import slow
attempt = worker.park()
assert worker.park() == attempt and worker.attempt() == attempt.number
waited = attempt.was_parked
"#;

/// The same by the protocol alone, as a program in any language does it.
const BY_PROTOCOL: &str = r#"
import os, socket
print("before")
import slow
channel = socket.socket(fileno=int(os.environ.pop("LOCKSTEP_PARK")))
channel.send(b"ready")
start, *changes = channel.recv(1 << 20).split(b"\0")
if start != b"start":
    os._exit(120)
for change in changes:
    name, equals, value = change.partition(b"=")
    if equals:
        os.environb[name] = value
    else:
        os.environb.pop(name, None)
channel.send(b"started")
channel.close()
waited = bool(changes)
"#;

/// Tells what must not depend on how it was started, and runs until it is ended.
const ON: &str = r#"
tell(
    waited=waited, variables=sorted((n, v) for n, v in os.environ.items() if n != "LOCKSTEP_RESTART_ATTEMPT"),
    open=OPEN, arguments=sys.argv, folder=os.getcwd(), group=os.getpgid(0) == os.getpid(), parent=os.getppid(),
    mask=signal.pthread_sigmask(signal.SIG_BLOCK, []), score=open("/proc/self/oom_score_adj").read().strip(),
)
beat()
while True:
    signal.pause()
"#;
const SAME: [&str; 8] = [
    "variables",
    "open",
    "arguments",
    "folder",
    "group",
    "parent",
    "mask",
    "score",
];

impl Program {
    /// A program that parks by `call` before it does anything else. The library is installed.
    fn parking(call: &str, text: &str) -> Self {
        let program = Self::new(text);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/src/lockstep");
        let lib = program.dir.path().join("venv/lib").join(interpreter().1);
        let to = lib.join("site-packages/lockstep");
        fs::create_dir(&to).expect("mkdir");
        for name in ["__init__.py", "worker.py"] {
            fs::copy(from.join(name), to.join(name)).expect("copy the library");
        }
        fs::write(
            program.dir.path().join("train.py"),
            format!("{call}{PRELUDE}{text}"),
        )
        .expect("write");
        program
    }

    fn start_parking(self) -> Worker {
        let worker = ["venv/bin/python3", "-u", "train.py", "--lr", "0.1"];
        self.start_up(command(&worker).with_parking())
    }
}

impl Worker {
    /// The standby, once it has parked.
    fn parked(&mut self) -> Process {
        self.ready();
        self.standby()
    }
}

fn score_of(pid: i32) -> String {
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("score");
    score.trim().to_owned()
}

/// Restarts a program that parks by `call`, and compares the attempts.
fn assert_goes_on(call: &str) {
    let mut worker = Program::parking(call, ON).start_parking();
    let state = worker.ready();
    assert_eq!(state.starts, Some(cold()));
    let standbys = state.standbys.expect("standbys");
    assert_eq!(
        (standbys.wanted, standbys.modules, standbys.reason.as_str()),
        (1, 0, "")
    );
    assert!(standbys.memory_kib > 1000, "{standbys:?}");
    let first = SAME.map(|name| worker.told(name));
    assert!(!first[0].contains("LOCKSTEP_PARK"), "{}", first[0]);
    assert_eq!(worker.told("waited"), "False");
    for generation in 1..=3 {
        let standby = worker.standby();
        assert_eq!(score_of(standby.pid), "1000");
        let starts = worker.restart();
        assert!(is_from_standby(starts) && starts.ahead_ms >= 100, "{starts:?}");
        assert_eq!(worker.pid(), standby.inner, "the worker is not the standby");
        assert_eq!(worker.told("waited"), "True");
        for (name, first) in SAME.iter().zip(&first) {
            assert_eq!(worker.told(name), *first, "{name} of attempt {generation}");
        }
        worker.ready();
    }
    worker.assert_no_complaints();
    // Once for each process: the worker's first, and a standby for each attempt.
    assert_eq!(worker.rig.out(), "before\n".repeat(5));
    let err = worker.rig.err();
    let line = "lockstep: a standby is ready for the next attempt: parked, ";
    assert_eq!(err.matches(line).count(), 4, "{err}");
    assert_eq!(err.lines().count(), 4, "{err}");
}

#[test]
fn a_restart_goes_on_where_the_library_has_parked() {
    assert_goes_on(BY_LIBRARY);
}

#[test]
fn a_restart_goes_on_where_a_program_without_the_library_has_parked() {
    assert_goes_on(BY_PROTOCOL);
}

#[test]
fn a_program_that_never_parks_is_never_run_twice() {
    let text = "
os.close(os.open('ran', os.O_CREAT | os.O_EXCL))
tell()
beat()
time.sleep(1.5)
beat()
signal.pause()
";
    let program = Program::parking("", text);
    let mut worker = program.start_parking();
    let state = worker.reason("the program has not called park() yet");
    assert_eq!(state.standbys.expect("standbys").wanted, 1);
    // By now one has been due.
    worker
        .rig
        .await_err("no standby for now: the program has not called park() yet\n");
    worker.pid();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(worker.rig.others().len(), 1);
    fs::remove_file(worker.rig.path("ran")).expect("remove");
    assert_eq!(worker.restart(), cold());
    worker.pid();
    worker.assert_no_complaints();
}

#[test]
fn a_program_that_parks_late_has_a_standby_from_then_on() {
    let call = "import os\nif os.environ.get('LOCKSTEP_RESTART_ATTEMPT') == '0':\n    import time\n    os.utime(os.environ['LOCKSTEP_HEARTBEAT'])\n    while not os.path.exists('go'): time.sleep(0.01)\n";
    let mut worker = Program::parking(&format!("{call}{BY_LIBRARY}"), ON).start_parking();
    worker.rig.await_err("the program has not called park() yet");
    assert_eq!(worker.rig.others().len(), 1);
    fs::write(worker.rig.path("go"), "").expect("write");
    let standby = worker.parked();
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), standby.inner);
}

#[test]
fn one_that_cannot_be_run_twice_is_tried_three_times() {
    let call = "import os, sys\nif 'LOCKSTEP_RESTART_ATTEMPT' not in os.environ: sys.exit(3)\n";
    let mut worker = Program::parking(&format!("{call}{BY_LIBRARY}"), ON).start_parking();
    let state = worker.when("the end of tries", |state| {
        state
            .standbys
            .as_ref()
            .is_some_and(|standbys| standbys.wanted == 0)
    });
    let standbys = state.standbys.expect("standbys");
    assert_eq!(
        (standbys.ready, standbys.reason.as_str()),
        (0, "the standby ended with code 3 before it parked")
    );
    assert_eq!(worker.restart(), cold());
    worker.pid();
    assert_eq!(worker.rig.others().len(), 1);
    worker.assert_no_complaints();
}

#[test]
fn a_standby_that_is_killed_is_followed_by_another() {
    let mut worker = Program::parking(BY_LIBRARY, ON).start_parking();
    let standby = worker.parked();
    standby.kill();
    worker.reason("the standby was killed by signal 9");
    let next = worker.parked();
    assert_ne!(next.inner, standby.inner);
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), next.inner);
    worker.assert_no_complaints();
}

#[test]
fn one_that_does_not_go_on_is_given_up() {
    let mut worker = Program::parking(BY_LIBRARY, ON).start_parking();
    let standby = worker.parked();
    kill(Pid::from_raw(standby.pid), Signal::SIGSTOP).expect("stop");
    assert_eq!(worker.restart(), cold());
    assert_ne!(worker.pid(), standby.inner);
    worker
        .rig
        .await_err("no standby for now: the standby did not go on in time");
    worker.parked();
    assert!(is_from_standby(worker.restart()));
    worker.assert_no_complaints();
}

/// If a shell waits for the program, the program parks anyway, and both become the worker.
#[test]
fn a_program_behind_a_shell_parks() {
    let program = Program::parking(BY_LIBRARY, ON);
    let shell = "venv/bin/python3 -u train.py; exit $?";
    let setup = command(&["/bin/sh", "-c", shell]).with_parking();
    let mut worker = program.start_up(setup);
    let score = worker.told("score");
    worker.ready();
    let of = |worker: &Worker, command: &str| -> Vec<Process> {
        let mut found = worker.rig.others();
        found.retain(|process| process.command.starts_with(command));
        found
    };
    let own = worker.pid();
    let standby = of(&worker, "venv/bin/python3")
        .into_iter()
        .find(|process| process.inner != own)
        .expect("a standby");
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), standby.inner);
    assert_eq!(worker.told("score"), score);
    for process in [standby.pid, parent_of(standby.pid)] {
        assert_eq!(score_of(process), score);
    }
    worker.ready();
    assert_eq!(of(&worker, "/bin/sh").len(), 2);
    worker.assert_no_complaints();
}

/// A program in another language. As a standby it keeps other users out of its files in `/proc`,
/// so an agent that is not root may not write its score.
#[test]
fn one_whose_score_cannot_be_given_back_is_not_released() {
    let text = r#"
sub score { open(my $file, "<", "/proc/self/oom_score_adj") or die; <$file> }
unless (exists $ENV{LOCKSTEP_RESTART_ATTEMPT} or -e "open") {
    select(undef, undef, undef, 0.01) until score() == 1000;
    syscall(PRCTL, 4, 0, 0, 0, 0);
}
open(my $park, "+<&=", delete $ENV{LOCKSTEP_PARK}) or die;
send($park, "ready", 0);
recv($park, my $text, 65536, 0);
my ($start, @changes) = split /\0/, $text;
exit 120 if $start ne "start";
for (@changes) {
    my ($name, $value) = split /=/, $_, 2;
    if (defined $value) { $ENV{$name} = $value } else { delete $ENV{$name} }
}
send($park, "started", 0);
close $park;
open(my $told, ">", "new") or die;
print $told "pid=$$\n";
close $told;
rename "new", "told.$ENV{LOCKSTEP_RESTART_ATTEMPT}";
utime undef, undef, $ENV{LOCKSTEP_HEARTBEAT};
sleep 1000;
"#;
    let text = text.replace("PRCTL", &libc::SYS_prctl.to_string());
    let user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"];
    let setup = command(&["perl", "-e", &text]).with_parking().under(&user);
    let mut worker = Program::new("").start_up(setup);
    let score = score_of(worker.rig.agent());
    worker.ready();
    let standby = worker.standby();
    assert_eq!(score_of(standby.pid), "1000");
    fs::write(worker.rig.path("open"), "").expect("write");
    assert_eq!(worker.restart(), cold());
    assert_ne!(worker.pid(), standby.inner);
    let line = "lockstep: no standby for now: its oom_score_adj cannot be set back\n";
    worker.rig.await_err(line);
    // The next one lets it be written.
    worker.ready();
    let standby = worker.standby();
    assert!(is_from_standby(worker.restart()));
    assert_eq!(worker.pid(), standby.inner);
    assert_eq!(score_of(standby.pid), score);
}

#[test]
fn the_end_of_the_container_ends_what_is_parked() {
    let text = ON.replace(
        "beat()",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nbeat()",
    );
    let program = Program::parking(BY_LIBRARY, &text);
    let setup = command(&["venv/bin/python3", "-u", "train.py"]).with_parking();
    let mut worker = program.start_up(setup.without_namespace());
    worker.ready();
    let own = worker.pid();
    let agent = Process {
        pid: worker.rig.agent(),
        inner: 0,
        command: String::new(),
        zombie: false,
    };
    let standby = agent
        .children()
        .into_iter()
        .find(|pid| *pid != own)
        .expect("a standby");
    worker.rig.signal(Signal::SIGTERM);
    assert_eq!(worker.rig.exit_code(), 7);
    eventually("the end of the standby", || {
        stat_field(standby, 0)
            .is_none_or(|state| state == "Z")
            .then_some(())
    });
    worker.assert_no_complaints();
}
