//! Callers and their ranks. No process has the PIDs that ranks and standbys have here.

use super::super::calls::{CALL, DEAF};
use super::super::inherited;
use super::super::process::LONGEST_IMPORT;
use super::super::wire::Answer;
use super::*;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

const NOBODY: i32 = i32::MAX;
const KILLED: Exit = Exit::Signal(libc::SIGKILL);

struct Bench {
    ranks: Ranks,
    folder: Folder,
    watched: Watched,
    memory: Memory,
    now: Duration,
    beats: bool,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let watched = Watched::new().unwrap();
        Self {
            ranks: Ranks::open(&folder, &watched).unwrap(),
            folder,
            watched,
            memory: Memory::at(dir.path()),
            now: Duration::from_secs(1000),
            beats: true,
            _dir: dir,
        }
    }

    fn serve(&mut self) -> Vec<Input> {
        let context = Context {
            folder: &self.folder,
            watched: &self.watched,
            memory: &self.memory,
            now: self.now,
            running: true,
            beats: self.beats,
            busy: false,
        };
        self.ranks.serve(&context)
    }

    /// Calls as this process would.
    /// Learns a kind of rank from a call, and returns the caller's end of the socket.
    fn learn(&mut self) -> (UnixDatagram, u32) {
        let caller = self.call();
        self.serve();
        let kind = self.ranks.kinds.iter().next().unwrap().id;
        (caller, kind)
    }

    /// Adds a standby of a kind that waits, and returns its end of the socket.
    fn wait(&mut self, kind: u32) -> UnixDatagram {
        let (standby, theirs) = waiting(kind);
        self.ranks.waiting.push(standby);
        theirs
    }

    fn call(&self) -> UnixDatagram {
        self.call_with(&inherited::unseen())
    }

    fn call_with(&self, unseen: &str) -> UnixDatagram {
        let call = Call {
            umask: "18".to_owned(),
            unseen: unseen.to_owned(),
            folder: env::current_dir().unwrap().into(),
            command: vec!["/nowhere/python3".into(), "rank.py".into()],
            ..Call::default()
        };
        let agent = sys::call(&self.folder.path().join(SOCKET)).unwrap();
        let null = fs::File::open("/dev/null").unwrap();
        sys::send(agent.as_fd(), &call.encode(), &[null.as_fd(); 3]).unwrap();
        agent.set_nonblocking(true).unwrap();
        agent
    }

    /// Has a caller at this stage; the other end of its socket.
    fn caller(&mut self, stage: Stage) -> UnixDatagram {
        let (ours, theirs) = sys::pair().unwrap();
        self.watched.watch(ours.as_fd()).unwrap();
        self.ranks.callers.push(Caller {
            number: 0,
            socket: ours,
            pid: std::process::id().cast_signed(),
            stage,
        });
        let theirs = UnixDatagram::from(theirs);
        theirs.set_nonblocking(true).unwrap();
        theirs
    }
}

/// A standby of a kind, and its end of the socket.
fn waiting(kind: u32) -> (Waiting, UnixDatagram) {
    let (ours, theirs) = sys::pair().unwrap();
    let waiting = Waiting {
        kind,
        process: Process::new(NOBODY, ours),
        environment: Rc::default(),
        list: None,
        since: Duration::ZERO,
        skipped: 0,
        ended: false,
    };
    (waiting, theirs.into())
}

/// A standby that was told to go on, and its end of the socket.
fn released() -> (Stage, UnixDatagram) {
    released_as(NOBODY)
}

fn released_as(pid: i32) -> (Stage, UnixDatagram) {
    let (ours, theirs) = sys::pair().unwrap();
    let mut process = Process::new(pid, ours);
    assert!(process.release([]));
    let release = Release {
        kind: 0,
        process,
        leads: false,
        list: None,
        ahead: Duration::ZERO,
        skipped: 0,
        going: RankRelease::at(Duration::ZERO),
    };
    (Stage::Releasing(Box::new(release)), theirs.into())
}

fn is_hung_up(caller: &UnixDatagram) -> bool {
    caller.set_nonblocking(true).unwrap();
    match caller.recv(&mut [0; 64]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// What a caller has been told.
fn told(caller: &UnixDatagram) -> Option<Answer> {
    let mut text = [0; 64];
    let length = caller.recv(&mut text).ok()?;
    Answer::decode(&text[..length])
}

#[test]
fn a_call_is_answered_once_the_rank_before_has_ended() {
    let mut bench = Bench::new();
    let stands_in = bench.caller(Stage::Running {
        kind: 0,
        pid: NOBODY,
        leads: false,
        _list: None,
    });
    drop(stands_in);
    let caller = bench.call();
    bench.serve();
    bench.serve();
    assert_eq!(told(&caller), None);
    assert!(!bench.watched.is_ready(), "it is not waited for in vain");
    assert!(bench.ranks.reaped(NOBODY, KILLED));
    bench.serve();
    assert_eq!(told(&caller), Some(Answer::Cold));
    assert!(!bench.ranks.reaped(NOBODY, KILLED), "it is reaped once");
}

#[test]
fn a_standby_that_is_given_up_cannot_go_on_any_more() {
    let mut bench = Bench::new();
    let (stage, standby) = released();
    let caller = bench.caller(stage);
    standby.send(b"started").unwrap();
    bench.serve();
    assert_eq!(told(&caller), Some(Answer::Started));
    assert!(bench.ranks.reaped(NOBODY, Exit::Code(0)));

    let (stage, standby) = released();
    let caller = bench.caller(stage);
    bench.serve();
    assert!(standby.send(b"started").is_err());
    assert_eq!(told(&caller), None);
    // It has run nothing. The caller may do that once it has ended.
    assert!(bench.ranks.reaped(NOBODY, KILLED));
    bench.serve();
    assert_eq!(told(&caller), Some(Answer::Cold));
}

/// It would get a standby that it can never use.
#[test]
fn a_caller_that_has_inherited_something_else_is_no_rank() {
    let mut bench = Bench::new();
    let caller = bench.call_with("another priority");
    assert_eq!(bench.serve(), []);
    assert_eq!(told(&caller), Some(Answer::Cold));
    assert_eq!(bench.ranks.kinds.all_wanted(), 0);
    assert!(
        bench.ranks.reason.contains("I/O priority"),
        "{}",
        bench.ranks.reason
    );
    let caller = bench.call();
    assert_eq!(bench.serve().len(), 1);
    assert_eq!(told(&caller), Some(Answer::Cold));
    assert_eq!(bench.ranks.kinds.all_wanted(), 1);
}

#[test]
fn what_a_released_standby_has_started_ends_with_it() {
    for end in ["its caller hangs up", "it is slow", "it refuses"] {
        let mut bench = Bench::new();
        let sleep = |group: i32| {
            Command::new("sleep")
                .arg("30")
                .process_group(group)
                .spawn()
                .unwrap()
        };
        let mut process = sleep(0);
        let pid = process.id().cast_signed();
        let mut child = sleep(pid);
        let (stage, standby) = released_as(pid);
        let caller = bench.caller(stage);
        let Stage::Releasing(release) = &mut bench.ranks.callers[0].stage else {
            panic!("no release");
        };
        match end {
            "it is slow" => {
                bench.serve();
            }
            "it refuses" => {
                assert!(release.going.gives_up(bench.now));
                assert!(bench.ranks.reaped(pid, Exit::Code(121)));
            }
            _ => {
                drop(caller);
                bench.serve();
            }
        }
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{end}");
        let _ = process.kill();
        process.wait().unwrap();
        drop(standby);
    }
}

#[test]
fn a_standby_that_does_not_become_a_rank_is_to_blame() {
    for (last, reason) in [
        (&b"refused environment TZ"[..], "variable TZ has changed"),
        (&b"spoiled bad socket"[..], "module bad is not imported ahead"),
        (&b""[..], "a rank's standby did not go on in time"),
    ] {
        let mut bench = Bench::new();
        let (_caller, kind) = bench.learn();
        let (mut stage, standby) = released();
        if let Stage::Releasing(release) = &mut stage {
            release.kind = kind;
            if last.is_empty() {
                assert!(release.going.gives_up(bench.now));
            }
        }
        let _caller = bench.caller(stage);
        if !last.is_empty() {
            standby.send(last).unwrap();
        }
        assert!(bench.ranks.reaped(NOBODY, Exit::Code(121)));
        assert!(bench.ranks.reason.contains(reason), "{}", bench.ranks.reason);
        assert_eq!(bench.ranks.log.said(), [bench.ranks.reason.as_str()]);
        let (at, _) = bench.ranks.kinds.next(|_| 0).unwrap();
        assert!(at > bench.now, "the next one is started at once");
        let skip = &bench.ranks.kinds.get(kind).unwrap().skip;
        assert_eq!(skip.len(), usize::from(reason.contains("bad")));
    }
}

#[test]
fn an_import_that_does_not_end_is_given_up() {
    let mut bench = Bench::new();
    let (_caller, kind) = bench.learn();
    let theirs = bench.wait(kind);
    theirs.send(b"importing endless").unwrap();
    bench.ranks.hear_standbys();
    for passed in [Duration::ZERO, LONGEST_IMPORT / 2, LONGEST_IMPORT] {
        bench.ranks.tend(&bench.memory, bench.now + passed);
        let imports = bench.ranks.waiting[0].process.importing();
        assert_eq!(imports.is_some(), passed < LONGEST_IMPORT);
    }
    assert!(bench.ranks.reaped(NOBODY, KILLED));
    assert_eq!(bench.ranks.kinds.get(kind).unwrap().skip.joined(), "endless");
    let reason = "module endless is not imported ahead: its import does not end";
    assert_eq!(bench.ranks.reason, reason);
}

#[test]
fn calls_that_cannot_be_taken_are_not_looked_at_all_the_time() {
    let mut bench = Bench::new();
    // It is always ready, and nothing can be accepted there.
    let (broken, other) = sys::pair().unwrap();
    drop(other);
    bench.watched.ignore(bench.ranks.listener.as_fd());
    bench.watched.watch(broken.as_fd()).unwrap();
    let broken = UnixListener::from(OwnedFd::from(broken));
    let listener = std::mem::replace(&mut bench.ranks.listener, broken);
    let caller = bench.call();
    bench.serve();
    assert!(!bench.watched.is_ready());
    assert_eq!(bench.ranks.deadline(), Some(bench.now + DEAF));

    bench.ranks.listener = listener;
    bench.serve();
    assert_eq!(told(&caller), None);
    bench.now += DEAF;
    bench.serve();
    assert_eq!(told(&caller), Some(Answer::Cold));
}

#[test]
fn a_caller_that_says_nothing_takes_no_place_for_ever() {
    let mut bench = Bench::new();
    let silent: Vec<UnixDatagram> = (0..MAX_RANKS)
        .map(|_| sys::call(&bench.folder.path().join(SOCKET)).unwrap())
        .collect();
    bench.serve();
    let late = bench.call();
    bench.serve();
    assert!(is_hung_up(&late), "it is one too many");
    assert_eq!(bench.ranks.deadline(), Some(bench.now + CALL));
    bench.now += CALL;
    bench.serve();
    assert!(silent.iter().all(is_hung_up));
    let next = bench.call();
    bench.serve();
    assert_eq!(told(&next), Some(Answer::Cold));
}

#[test]
fn nothing_is_started_ahead_before_the_first_heartbeat() {
    let mut bench = Bench::new();
    bench.beats = false;
    bench.ranks.begin(bench.now);
    bench.serve();
    bench.now += RANK_SETTLED * 2;
    bench.serve();
    assert_eq!(bench.ranks.warmed, None);
    assert_eq!(bench.ranks.deadline(), None, "it is told of the heartbeat");
    bench.beats = true;
    bench.serve();
    assert_eq!(bench.ranks.warmed, Some(bench.now));
}

#[test]
fn what_the_agent_ends_itself_is_no_failure() {
    let mut bench = Bench::new();
    let (_caller, kind) = bench.learn();
    let _theirs = bench.wait(kind);
    bench.ranks.end();
    assert!(bench.ranks.reaped(NOBODY, KILLED));
    assert_eq!(bench.ranks.kinds.next(|_| 0), Some((Duration::ZERO, kind)));
    assert_eq!(bench.ranks.log.said(), [""; 0]);

    let _theirs = bench.wait(kind);
    assert!(bench.ranks.reaped(NOBODY, Exit::Signal(libc::SIGSEGV)));
    assert_eq!(
        bench.ranks.log.said(),
        ["a rank's standby was killed by signal 11"]
    );
}

#[test]
fn the_starts_of_an_attempt_are_not_counted_in_the_next() {
    let mut bench = Bench::new();
    let (stage, standby) = released();
    let _caller = bench.caller(stage);
    standby.send(b"started").unwrap();
    // It ends with the attempt, and is heard only then.
    assert!(bench.ranks.reaped(NOBODY, KILLED));
    bench.ranks.begin(bench.now);
    assert_eq!(bench.serve(), []);
}

#[test]
fn a_standby_that_was_told_to_end_is_not_released() {
    let mut bench = Bench::new();
    let (_caller, kind) = bench.learn();
    let theirs = bench.wait(kind);
    theirs.send(b"ready 1 1 1").unwrap();
    bench.ranks.hear_standbys();
    assert!(bench.ranks.waiting[0].stage().may_go_on());
    bench.ranks.end();
    assert!(!bench.ranks.waiting[0].stage().may_go_on());
}
