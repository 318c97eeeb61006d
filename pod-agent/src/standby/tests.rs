//! What is made of standbys that end. No process has the PID that they have here.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;

use super::*;

const NOBODY: i32 = i32::MAX;

struct Bench {
    standbys: Standbys,
    now: Duration,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = ["/nowhere/python3".into(), "train.py".into()];
        let mut standbys = Standbys::new(Some(dir.path()), &command);
        standbys.memory = Memory::at(dir.path());
        Self {
            standbys,
            now: Duration::ZERO,
            dir,
        }
    }

    /// Has a standby that says this.
    fn standby(&mut self, messages: &[&str]) -> UnixDatagram {
        let (ours, theirs) = sys::pair().unwrap();
        let theirs = UnixDatagram::from(theirs);
        for message in messages {
            theirs.send(message.as_bytes()).unwrap();
        }
        let watched = self.standbys.watched.as_ref();
        watched.unwrap().watch(ours.as_fd()).unwrap();
        self.standbys.process = Some(Process::new(NOBODY, ours));
        self.standbys.reason.clear();
        self.standbys.look_at = Some(self.now + LOOK);
        self.standbys.listen(self.now);
        theirs
    }

    fn ends(&mut self, messages: &[&str], exit: Exit) -> Option<Ended> {
        let _theirs = self.standby(messages);
        self.standbys.reaped(NOBODY, exit)
    }

    fn looks(&mut self) {
        self.now += LOOK;
        self.standbys.tend(self.now);
    }

    /// Leaves the container this much memory.
    fn leave(&self, room_kib: u64) {
        let write = |name: &str, bytes: u64| std::fs::write(self.dir.path().join(name), bytes.to_string());
        write("memory.max", room_kib << 10).unwrap();
        write("memory.current", 0).unwrap();
    }

    fn summary(&mut self) -> Summary {
        match self.standbys.news() {
            Some(Input::Standbys(summary)) => summary,
            other => panic!("{other:?}"),
        }
    }
}

const WAITING: Option<Ended> = Some(Ended::Waiting { hopeless: false });

/// Its status would say that it has started no Python.
#[test]
fn a_script_whose_calls_cannot_be_taken_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than the address of a socket may be.
    let place = dir.path().join("x".repeat(120));
    std::fs::create_dir(&place).unwrap();
    let wrapper = names::Wrapper {
        name: "sh".to_owned(),
        path: OsString::new(),
    };
    let way = Way::Wrapper(files::Folder::create(&place).unwrap(), wrapper);
    let mut standbys = Standbys::by(way, &["sh".into(), "run".into()]);
    let Some(Input::Standbys(summary)) = standbys.news() else {
        panic!("no news");
    };
    assert_eq!(summary.wanted, 0);
    let expected = "calls of ranks cannot be taken: ";
    assert!(summary.reason.starts_with(expected), "{}", summary.reason);
}

#[test]
fn a_module_is_to_blame_unless_others_ended_the_standby() {
    let mut bench = Bench::new();
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
        assert_eq!(bench.ends(&["importing good"], Exit::Signal(signal)), WAITING);
        assert_eq!(
            bench.summary().reason,
            format!("the standby was killed by signal {signal}")
        );
    }
    assert_eq!(bench.standbys.skip.len(), 0);
    for (name, exit) in [("bad", Exit::Signal(libc::SIGSEGV)), ("worse", Exit::Code(3))] {
        assert_eq!(bench.ends(&[&format!("importing {name}")], exit), WAITING);
        let reason = format!("module {name} is not imported ahead: it ended while it was imported");
        assert_eq!(bench.summary().reason, reason);
    }
    assert_eq!(bench.standbys.skip.joined(), "bad,worse");
    assert_eq!(bench.ends(&[], Exit::Code(120)), WAITING);
    assert_eq!(bench.summary().reason, "the standby ended with code 120");
}

#[test]
fn there_are_no_more_standbys_once_leaving_modules_out_does_not_help() {
    let mut bench = Bench::new();
    assert_eq!(bench.summary().wanted, 1);
    let blames =
        |bench: &mut Bench, at: usize| bench.ends(&[&format!("spoiled m{at} socket")], Exit::Code(121));
    for at in 0..64 {
        assert_eq!(blames(&mut bench, at), WAITING, "{at}");
    }
    let hopeless = Some(Ended::Waiting { hopeless: true });
    assert_eq!(blames(&mut bench, 64), hopeless);
    assert!(!bench.standbys.are_possible());
    let summary = bench.summary();
    assert_eq!((summary.wanted, summary.ready), (0, 0));
    assert_eq!(
        summary.reason,
        "module m64 is not imported ahead: it opens a port"
    );

    for odd in ["x", "", "a,b", "a;b"] {
        let mut bench = Bench::new();
        assert_eq!(bench.ends(&["spoiled x socket"], Exit::Code(121)), WAITING);
        let again = format!("spoiled {odd} socket");
        assert_eq!(bench.ends(&[&again], Exit::Code(121)), hopeless, "{odd}");
    }
}

#[test]
fn a_released_one_that_ends_has_refused_unless_its_last_word_says_otherwise() {
    let mut bench = Bench::new();
    let theirs = bench.standby(&["ready 1 2048 3"]);
    assert_eq!(bench.standbys.release([]), Some(NOBODY));
    assert_eq!(bench.standbys.spared().count(), 0);
    theirs.send(b"refused shadowed csv").unwrap();
    assert_eq!(
        bench.standbys.reaped(NOBODY, Exit::Code(121)),
        Some(Ended::Refused)
    );
    assert!(bench.summary().reason.contains("the name of module csv"));

    let theirs = bench.standby(&["ready 1 2048 3"]);
    bench.standbys.release([]);
    theirs.send(b"started").unwrap();
    assert_eq!(
        bench.standbys.reaped(NOBODY, Exit::Code(3)),
        Some(Ended::Confirmed)
    );

    let theirs = bench.standby(&["ready 1 2048 3"]);
    drop(theirs);
    assert_eq!(bench.standbys.release([]), None, "it has gone");
    assert_eq!(bench.standbys.reaped(NOBODY, Exit::Code(0)), WAITING);

    let _theirs = bench.standby(&["ready 1 2048 3"]);
    bench.standbys.release([]);
    assert_eq!(bench.standbys.give_up(), None);
    let exit = Exit::Signal(libc::SIGKILL);
    assert_eq!(bench.standbys.reaped(NOBODY, exit), Some(Ended::Refused));
    assert_eq!(bench.summary().reason, "the standby did not go on in time");
}

#[test]
fn one_that_is_given_up_cannot_go_on_any_more() {
    let mut bench = Bench::new();
    let theirs = bench.standby(&["ready 1 2048 3"]);
    bench.standbys.release([]);
    theirs.send(b"started").unwrap();
    assert_eq!(bench.standbys.give_up(), Some(Input::Started));

    let theirs = bench.standby(&["ready 1 2048 3"]);
    bench.standbys.release([]);
    assert_eq!(bench.standbys.give_up(), None);
    // It ends by that, as the hook and the library have it.
    assert!(theirs.send(b"started").is_err());
}

#[test]
fn one_that_hears_nothing_any_more_is_not_listened_to() {
    let mut bench = Bench::new();
    let theirs = bench.standby(&["importing x"]);
    let speaks = |bench: &Bench| bench.standbys.watched.as_ref().unwrap().is_ready();
    assert!(!speaks(&bench));
    drop(theirs);
    assert!(speaks(&bench));
    assert_eq!(bench.standbys.listen(bench.now), None);
    assert!(!speaks(&bench));
}

#[test]
fn an_import_that_does_not_end_is_given_up() {
    let mut bench = Bench::new();
    let theirs = bench.standby(&["importing one"]);
    let looks = process::LONGEST_IMPORT.as_secs() / LOOK.as_secs();
    for _ in 0..=looks - 1 {
        bench.looks();
    }
    theirs.send(b"importing two").unwrap();
    bench.standbys.listen(bench.now);
    for _ in 0..=looks {
        assert_eq!(bench.standbys.process.as_ref().unwrap().importing(), Some("two"));
        bench.looks();
    }
    assert_eq!(
        bench.standbys.reaped(NOBODY, Exit::Signal(libc::SIGKILL)),
        WAITING
    );
    assert_eq!(
        bench.summary().reason,
        "module two is not imported ahead: its import does not end"
    );
}

#[test]
fn what_a_standby_has_started_counts_when_memory_is_short() {
    let mut bench = Bench::new();
    // What it starts fills a variable of some MiB, says so, and then does nothing more.
    let full = r#"x=$(head -c 4000000 /dev/zero | tr '\0' x); echo; read y"#;
    let mut shell = Command::new("sh")
        .args(["-c", r#"sh -c "$0"; exit 1"#, full])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id().cast_signed();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let both = || family::Usage::of(pid).memory_kib;
    assert!(both() > memory::resident_kib(pid) + 3000);
    let _theirs = bench.standby(&["ready 1 2048 3"]);
    bench.standbys.process.as_mut().unwrap().pid = pid;
    bench.leave(both() + 1000);
    bench.looks();
    assert_eq!(bench.standbys.reason, "");
    bench.leave(both() - 1000);
    bench.looks();
    assert_eq!(bench.standbys.reason, memory::SHORT);
    assert_eq!(shell.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn a_worker_without_the_hook_gets_none() {
    let mut bench = Bench::new();
    let mask = sys::Signals::block().unwrap().before();
    let gone = Some(Input::StandbyGone { hopeless: false });
    assert_eq!(bench.standbys.warm(None, mask, bench.now), gone);
    assert_eq!(
        bench.summary().reason,
        "the program has not loaded the hook for standbys"
    );
    // Each worker has to load it.
    let Some((_, list)) = bench.standbys.way.hook() else {
        panic!("no hook");
    };
    list.begin();
    bench.standbys.warm(None, mask, bench.now);
    let reason = bench.summary().reason;
    assert!(reason.contains("cannot start a standby"), "{reason}");
    bench.standbys.begin(bench.now);
    bench.standbys.warm(None, mask, bench.now);
    assert!(bench.summary().reason.contains("not loaded the hook"));
    // The interpreter may be another one by now.
    let script = bench.dir.path().join("python3");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    bench.standbys.command = vec![script.into()];
    bench.standbys.warm(None, mask, bench.now);
    assert!(bench.summary().reason.contains("is a script that starts Python"));
    bench.standbys.hopeless = true;
    let gone = Some(Input::StandbyGone { hopeless: true });
    assert_eq!(bench.standbys.warm(None, mask, bench.now), gone);
}
