use proptest::prelude::*;

use super::*;

pub(in crate::agents::hostkill) const ID: &str = "0f6c1c8b8a4c4f6fb8f05f6f1c8b8a4c";
pub(in crate::agents::hostkill) const AGENT: i32 = 4242;

/// A line of `/proc/<pid>/stat`.
pub(in crate::agents::hostkill) fn stat(pid: i32, state: char, parent: i32, started: Ticks) -> String {
    format!("{pid} (x) {state} {parent} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {started} 1 1")
}

/// A `/proc` of processes that descend from the agent.
pub(in crate::agents::hostkill) struct FakeProc(tempfile::TempDir);

impl FakeProc {
    pub(in crate::agents::hostkill) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A `/proc` whose kernel lists children.
    pub(in crate::agents::hostkill) fn with_children() -> Self {
        let proc = Self::new();
        fs::create_dir(proc.path().join("thread-self")).unwrap();
        fs::write(proc.path().join("thread-self/children"), "").unwrap();
        proc
    }

    pub(in crate::agents::hostkill) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Sets the list of children of a thread.
    pub(in crate::agents::hostkill) fn lists(&self, pid: i32, thread: i32, children: &str) {
        let thread = self.path().join(format!("{pid}/task/{thread}"));
        fs::create_dir_all(&thread).unwrap();
        fs::write(thread.join("children"), children).unwrap();
    }

    fn below(&self) -> (Vec<i32>, bool) {
        let below = Tree::new(self.path().to_owned()).below(AGENT, &ContainerId::from(ID));
        let mut pids: Vec<i32> = below.processes.iter().map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        (pids, below.is_whole)
    }

    /// Adds a child of the agent.
    pub(in crate::agents::hostkill) fn add(&self, pid: i32, started: Ticks) {
        self.put(pid, &stat(pid, 'S', AGENT, started), &format!("0::/pod1/{ID}\n"));
    }

    fn put(&self, pid: i32, stat: &str, cgroup: &str) {
        let entry = self.path().join(pid.to_string());
        fs::create_dir(&entry).unwrap();
        fs::write(entry.join("stat"), stat).unwrap();
        fs::write(entry.join("cgroup"), cgroup).unwrap();
    }
}

/// Processes, their parents and when they were started.
fn of(processes: &[(i32, i32, Ticks)]) -> Vec<(i32, Process)> {
    let process = |(pid, parent, started): &(i32, i32, Ticks)| {
        let (parent, started) = (*parent, *started);
        (*pid, Process { parent, started })
    };
    processes.iter().map(process).collect()
}

/// The agent of shim 5; 11 worker, 12 its child, 13 orphan taken over by the agent; 20 exec session
/// of the shim, 21 its child; 30 of another container.
fn container(proc: &FakeProc) {
    for (pid, parent) in [(AGENT, 5), (11, AGENT), (12, 11), (13, AGENT), (20, 5), (21, 20)] {
        proc.put(pid, &stat(pid, 'S', parent, 1), &format!("0::/pod1/{ID}\n"));
    }
    proc.put(30, &stat(30, 'S', AGENT, 1), "0::/elsewhere\n");
}

#[test]
fn descendants_of_the_agent_are_found_and_exec_sessions_are_not() {
    let proc = FakeProc::new();
    container(&proc);
    assert_eq!(proc.below(), (vec![11, 12, 13], true));

    let proc = FakeProc::with_children();
    container(&proc);
    proc.lists(AGENT, AGENT, "11 30 ");
    // One of its threads has inherited it.
    proc.lists(AGENT, AGENT + 1, "13 ");
    proc.lists(11, 11, "12 ");
    proc.lists(12, 12, "");
    proc.lists(13, 13, "");
    proc.lists(20, 20, "21 ");
    assert_eq!(proc.below(), (vec![11, 12, 13], true));
}

#[test]
fn an_agent_that_is_gone_has_nothing_below_it() {
    for proc in [FakeProc::new(), FakeProc::with_children()] {
        assert_eq!(proc.below(), (vec![], true));
    }
}

#[test]
fn a_process_that_ends_during_a_look_makes_it_incomplete() {
    let proc = FakeProc::with_children();
    container(&proc);
    proc.put(14, &stat(14, 'Z', AGENT, 1), &format!("0::/pod1/{ID}\n"));
    proc.lists(AGENT, AGENT, "14 ");
    assert_eq!(proc.below(), (vec![], false));
    proc.lists(AGENT, AGENT, "15 ");
    assert_eq!(proc.below(), (vec![], false));
    // It had children when it was listed.
    proc.lists(AGENT, AGENT, "13 ");
    assert_eq!(proc.below(), (vec![13], false));
}

#[test]
fn every_look_ends() {
    let proc = FakeProc::with_children();
    proc.put(AGENT, &stat(AGENT, 'S', 5, 1), &format!("0::/pod1/{ID}\n"));
    // An endless chain of the same PIDs, and more children than are read.
    container_of_one(&proc, 11, "12 ");
    container_of_one(&proc, 12, "11 4242 ");
    proc.lists(AGENT, AGENT, "11 ");
    assert_eq!(proc.below(), (vec![11, 12], true));

    let many: Vec<i32> = (10_000..10_000 + MAX_READS as i32).collect();
    for pid in &many {
        container_of_one(&proc, *pid, "");
    }
    let listed: String = many.iter().map(|pid| format!("{pid} ")).collect();
    proc.lists(AGENT, AGENT, &listed);
    let (found, is_whole) = proc.below();
    assert!(
        found.len() > MAX_READS / 4 && found.len() <= MAX_READS / 2,
        "{}",
        found.len()
    );
    assert!(!is_whole);

    // As many threads.
    proc.lists(AGENT, AGENT, "");
    assert_eq!(proc.below(), (vec![], true));
    for thread in 0..MAX_READS as i32 {
        proc.lists(AGENT, 1_000_000 + thread, "");
    }
    assert_eq!(proc.below(), (vec![], false));
}

fn container_of_one(proc: &FakeProc, pid: i32, children: &str) {
    proc.put(pid, &stat(pid, 'S', AGENT, 1), &format!("0::/pod1/{ID}\n"));
    proc.lists(pid, pid, children);
}

#[test]
fn a_truncated_pid_is_ignored() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let many: String = (1_000_000..1_020_000).map(|pid| format!("{pid} ")).collect();
    fs::write(file.path(), &many).unwrap();
    let read = numbers(file.path()).unwrap();
    assert_eq!(read.len() as u64, MAX_LIST / 8);
    fs::write(file.path(), &many[1..]).unwrap();
    assert!(
        numbers(file.path()).unwrap()[1..]
            .iter()
            .all(|pid| *pid >= 1_000_000)
    );
    fs::write(file.path(), "").unwrap();
    assert_eq!(numbers(file.path()).unwrap(), Vec::<i32>::new());
}

#[test]
fn later_processes_survive_unless_a_doomed_one_started_them() {
    let mut doomed = BTreeSet::new();
    // 11 is to be killed and forks 12 meanwhile; 13 was started in the tick of the request.
    let below = of(&[(11, 10, 7), (13, 10, 8), (12, 11, 9)]);
    assert_eq!(select_doomed(&below, 8, &mut doomed), [(11, 7), (12, 9)]);
    // 11 has died, 12 is the agent's now; 14 is the next worker's, and another process has PID 11.
    let below = of(&[(11, 10, 20), (12, 10, 9), (14, 11, 21)]);
    assert_eq!(select_doomed(&below, 8, &mut doomed), [(12, 9)]);
    let below = of(&[(11, 10, 20), (14, 11, 21)]);
    assert!(select_doomed(&below, 8, &mut doomed).is_empty());
}

#[test]
fn a_command_may_look_like_anything() {
    let odd = stat(7, 'R', 42, 99).replace("(x)", "(a) S 3 (b)");
    let process = Process {
        parent: 42,
        started: 99,
    };
    assert_eq!(live(&odd), Some(process));
    assert_eq!(live(&stat(7, 'Z', 42, 99)), None);
    // Its first thread has ended, and others have not.
    let threads = stat(7, 'Z', 42, 99).replace(" 20 0 1 0 99 ", " 20 0 3 0 99 ");
    assert_eq!(live(&threads), Some(process));
    assert_eq!(live("nonsense"), None);
    assert_eq!(live("7 (x) S 42 7"), None);
}

proptest! {
    /// A process may choose any name.
    #[test]
    fn no_command_name_confuses_the_parser(
        name in "[ ()RSZX0-9]{0,15}|\\PC{0,15}|.{0,15}",
        state in prop::sample::select(vec!['R', 'S', 'D', 'Z', 'X']),
        parent in any::<i32>(),
        started in any::<Ticks>(),
        garbage in ".{0,60}",
    ) {
        let line = stat(12, state, parent, started).replacen("(x)", &format!("({name})"), 1);
        let read = live(&line).map(|process| (process.parent, process.started));
        prop_assert_eq!(read, (!matches!(state, 'Z' | 'X')).then_some((parent, started)));
        let _ = live(&garbage);
        let _ = live(&format!("1 (x) {garbage}"));
    }
}
