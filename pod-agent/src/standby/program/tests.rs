use super::super::{Ended, Memory, Standbys};
use super::*;
use crate::machine::{Exit, Input};

/// No process has this PID.
const NOBODY: i32 = i32::MAX;
const COMMAND: [&str; 3] = ["sh", "-c", "sleep 1000"];

/// The standbys of a program, and the other ends of their sockets.
struct Bench {
    standbys: Standbys,
    now: Duration,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut standbys = Standbys::of_program(&COMMAND.map(OsString::from));
        assert!(standbys.are_possible(), "{}", standbys.reason);
        standbys.memory = Memory::at(dir.path());
        Self {
            standbys,
            now: Duration::from_secs(1000),
            _dir: dir,
        }
    }

    fn program(&mut self) -> &mut Program {
        self.standbys.way.program_mut().unwrap()
    }

    /// Starts a worker cold; returns its socket.
    fn worker(&mut self) -> UnixDatagram {
        self.standbys.begin(self.now);
        let mut command = Command::new("worker");
        self.standbys.learn(&mut command);
        let number = socket_of(&command).unwrap();
        let (_, theirs) = self.program().ends.as_ref().unwrap();
        assert_eq!(theirs.as_raw_fd().to_string(), number);
        let theirs = theirs.try_clone().unwrap();
        self.standbys.runs(NOBODY);
        theirs.into()
    }

    /// The same, and it parks after this time.
    fn parked(&mut self, after: Duration) {
        let worker = self.worker();
        self.now += after;
        worker.send(b"ready").unwrap();
        self.listen();
        assert_eq!(heard(&worker), b"start");
    }

    fn listen(&mut self) -> Option<Input> {
        self.standbys.listen(self.now)
    }

    /// Has a standby that says this.
    fn standby(&mut self, messages: &[&str]) -> UnixDatagram {
        let (ours, theirs) = sys::pair().unwrap();
        let theirs = UnixDatagram::from(theirs);
        for message in messages {
            theirs.send(message.as_bytes()).unwrap();
        }
        self.standbys.process = Some(Process::parking(NOBODY, ours));
        self.standbys.reason.clear();
        self.standbys.look_at = Some(self.now);
        self.program().since = self.now;
        self.listen();
        theirs
    }

    fn ends(&mut self, messages: &[&str], exit: Exit) -> Option<Ended> {
        let _theirs = self.standby(messages);
        self.standbys.reaped(NOBODY, exit)
    }

    fn mask(&self) -> Mask {
        Mask::none()
    }
}

fn socket_of(command: &Command) -> Option<String> {
    let (_, value) = command.get_envs().find(|(name, _)| *name == PARK)?;
    Some(value?.to_str().unwrap().to_owned())
}

fn heard(socket: &UnixDatagram) -> Vec<u8> {
    let mut text = vec![0; 256];
    socket.set_nonblocking(true).unwrap();
    let length = socket.recv(&mut text).unwrap();
    text.truncate(length);
    text
}

fn waiting(hopeless: bool) -> Option<Ended> {
    Some(Ended::Waiting { hopeless })
}

#[test]
fn a_worker_that_parks_is_let_go_on_at_once_and_then_started_ahead() {
    let mut bench = Bench::new();
    let worker = bench.worker();
    let gone = Some(Input::StandbyGone { hopeless: false });
    let mask = bench.mask();
    assert_eq!(bench.standbys.warm(Some(NOBODY), mask, bench.now), gone);
    assert_eq!(bench.standbys.reason, NOT_YET);
    assert!(bench.standbys.interest().is_some());

    worker.send(b"ready").unwrap();
    assert_eq!(bench.listen(), None);
    assert_eq!(heard(&worker), b"start");
    assert_eq!(bench.standbys.reason, "");
    worker.send(b"started").unwrap();
    bench.listen();
    assert!(
        bench.standbys.interest().is_none(),
        "nothing is to be heard of it"
    );

    assert_eq!(bench.standbys.warm(Some(NOBODY), mask, bench.now), None);
    let standby = bench.standbys.process.as_ref().unwrap().pid;
    let score = std::fs::read_to_string(format!("/proc/{standby}/oom_score_adj")).unwrap();
    assert_eq!(score, "1000\n");
    assert_eq!(bench.standbys.spared().collect::<Vec<_>>(), [standby]);
    bench.standbys.end();
}

#[test]
fn each_worker_has_to_park_for_itself() {
    let mut bench = Bench::new();
    bench.parked(Duration::ZERO);
    assert!(bench.program().may_start().is_ok());
    let silent = bench.worker();
    assert_eq!(bench.program().may_start(), Err(NOT_YET.to_owned()));
    drop(silent);
    bench.listen();
    assert_eq!(bench.program().may_start(), Err(NOT_YET.to_owned()));

    // One that was a standby has parked already.
    let standby = bench.standby(&["ready"]);
    bench.standbys.begin(bench.now);
    assert_eq!(bench.standbys.release([]), Some(NOBODY));
    assert!(bench.program().may_start().is_ok());
    standby.send(b"started").unwrap();
    assert_eq!(bench.listen(), Some(Input::Started));
    // If it refuses, the cold start begins the attempt again.
    bench.standbys.begin(bench.now);
    assert!(bench.program().may_start().is_err());
}

#[test]
fn a_worker_that_says_nothing_right_or_hangs_up_is_left_alone() {
    let mut bench = Bench::new();
    let worker = bench.worker();
    for odd in [&b"started"[..], b"ready 1 2 3", b"start", b"\xff"] {
        worker.send(odd).unwrap();
    }
    bench.listen();
    assert!(bench.program().may_start().is_err());
    drop(worker);
    bench.listen();
    assert!(bench.standbys.interest().is_none());
}

#[test]
fn one_that_ends_before_it_parks_is_tried_three_times() {
    let mut bench = Bench::new();
    let code = Exit::Code(3);
    assert_eq!(bench.ends(&[], code), waiting(false));
    assert_eq!(
        bench.standbys.reason,
        "the standby ended with code 3 before it parked"
    );
    assert_eq!(bench.ends(&[], Exit::Signal(libc::SIGSEGV)), waiting(false));
    assert_eq!(
        bench.standbys.reason,
        "the standby was killed by signal 11 before it parked"
    );
    // Others have ended these.
    for _ in 0..5 {
        assert_eq!(bench.ends(&[], Exit::Signal(libc::SIGKILL)), waiting(false));
    }
    // One that parks shows that it can.
    assert_eq!(bench.ends(&["ready"], code), waiting(false));
    assert_eq!(bench.standbys.reason, "the standby ended with code 3");
    assert_eq!(bench.ends(&[], code), waiting(false));
    assert_eq!(bench.ends(&[], code), waiting(false));
    assert_eq!(bench.ends(&[], code), waiting(true));
    assert!(!bench.standbys.are_possible());
}

#[test]
fn one_that_does_not_park_in_time_is_ended() {
    for (took, most) in [(0, 60), (10, 60), (20, 80)] {
        let mut bench = Bench::new();
        bench.parked(Duration::from_secs(took));
        for round in 1..=3 {
            let theirs = bench.standby(&[]);
            bench.now += Duration::from_secs(most - 1);
            bench.standbys.tend(bench.now);
            assert_eq!(bench.standbys.reason, "");
            bench.now += super::super::LOOK;
            bench.standbys.tend(bench.now);
            let reason = format!("the standby has not parked within {most} s");
            assert_eq!(bench.standbys.reason, reason);
            bench.now += super::super::LOOK;
            bench.standbys.tend(bench.now);
            let killed = Exit::Signal(libc::SIGKILL);
            assert_eq!(bench.standbys.reaped(NOBODY, killed), waiting(round == 3));
            assert_eq!(bench.standbys.reason, reason);
            drop(theirs);
        }
    }
}

#[test]
fn one_that_waits_may_wait_for_ever() {
    let mut bench = Bench::new();
    bench.parked(Duration::ZERO);
    let _theirs = bench.standby(&["ready"]);
    for _ in 0..100 {
        bench.now += super::super::LOOK;
        bench.standbys.tend(bench.now);
    }
    assert_eq!(bench.standbys.reason, "");
}

#[test]
fn a_worker_that_cannot_be_given_a_socket_has_none_of_another() {
    let mut bench = Bench::new();
    bench.standbys.watched = None;
    assert!(!bench.standbys.are_possible());
    let mut command = Command::new("worker");
    bench.standbys.learn(&mut command);
    assert_eq!(socket_of(&command), None);
    bench.standbys.runs(NOBODY);
    assert!(!bench.program().awaits_worker());
}
