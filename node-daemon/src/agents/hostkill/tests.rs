use std::os::unix::process::ExitStatusExt as _;

use proptest::prelude::*;

use super::*;

const ID: &str = "0f6c1c8b8a4c4f6fb8f05f6f1c8b8a4c";
const AGENT: i32 = 4242;

fn stat(pid: i32, state: char, parent: i32, started: Ticks) -> String {
    format!("{pid} (x) {state} {parent} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {started} 1 1")
}

fn tree(processes: &[(i32, i32, Ticks)]) -> BTreeMap<i32, Process> {
    processes
        .iter()
        .map(|(pid, parent, started)| {
            let (parent, started) = (*parent, *started);
            (*pid, Process { parent, started })
        })
        .collect()
}

/// A `/proc` of processes that descend from the agent.
struct FakeProc(tempfile::TempDir);

impl FakeProc {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn add(&self, pid: i32, started: Ticks) {
        self.put(pid, &stat(pid, 'S', AGENT, started), &format!("0::/pod1/{ID}\n"));
    }

    fn put(&self, pid: i32, stat: &str, cgroup: &str) {
        let entry = self.0.path().join(pid.to_string());
        fs::create_dir(&entry).unwrap();
        fs::write(entry.join("stat"), stat).unwrap();
        fs::write(entry.join("cgroup"), cgroup).unwrap();
    }

    fn killer(&self) -> ProcKiller {
        ProcKiller::new(self.0.path().to_owned())
    }
}

fn sleeper() -> (tokio::process::Child, i32) {
    let child = tokio::process::Command::new("sleep")
        .arg("600")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    (child, pid)
}

fn ask(before: u64) -> HostKill {
    HostKill {
        namespace: "ns".to_owned(),
        container: ContainerId::from(ID),
        agent_pid: AGENT,
        before,
    }
}

/// Until nothing is being killed any more.
async fn idle(killer: &ProcKiller) {
    while !killer.asked().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn what_descends_from_the_agent_dies_and_exec_sessions_live() {
    // 10 agent, 11 worker, 12 its child, 13 orphan taken over by the agent; 20 exec session of shim 5, 21 its child.
    let living = tree(&[
        (10, 5, 1),
        (11, 10, 1),
        (12, 11, 1),
        (13, 10, 1),
        (20, 5, 1),
        (21, 20, 1),
    ]);
    assert_eq!(descendants(&living, 10), BTreeSet::from([11, 12, 13]));
    assert_eq!(descendants(&living, 99), BTreeSet::new());
}

#[test]
fn what_was_started_later_lives_unless_it_comes_of_what_dies() {
    let mut doomed = BTreeSet::new();
    // 11 was asked to be killed and forks 12 meanwhile; 13 was started in the tick of the ask.
    let living = tree(&[(10, 5, 1), (11, 10, 7), (12, 11, 9), (13, 10, 8)]);
    assert_eq!(condemn(&living, 10, 8, &mut doomed), [(11, 7), (12, 9)]);
    // 11 has died, 12 is the agent's now; 14 is the next worker's, and 11 has become another's number.
    let living = tree(&[(10, 5, 1), (11, 10, 20), (12, 10, 9), (14, 11, 21)]);
    assert_eq!(condemn(&living, 10, 8, &mut doomed), [(12, 9)]);
    let living = tree(&[(10, 5, 1), (11, 10, 20), (14, 11, 21)]);
    assert!(condemn(&living, 10, 8, &mut doomed).is_empty());
}

#[test]
fn only_what_was_there_for_certain_is_meant() {
    assert_eq!(fence(5 * TICK_NANOS + 1, 9 * TICK_NANOS), 5);
    assert_eq!(fence(u64::MAX, 9 * TICK_NANOS), 9, "nothing of the future");
    assert_eq!(fence(0, 9 * TICK_NANOS), 9, "an agent of before does not say");
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
    assert_eq!(live("nonsense"), None);
    assert_eq!(live("7 (x) S 42 7"), None);
}

#[test]
fn only_processes_of_the_container_count() {
    let proc = FakeProc::new();
    proc.add(11, 1);
    proc.put(12, &stat(12, 'S', AGENT, 1), "0::/elsewhere\n");
    fs::create_dir(proc.0.path().join("sys")).unwrap();
    let found = processes(proc.0.path(), &ContainerId::from(ID));
    assert_eq!(found, tree(&[(11, AGENT, 1)]));
}

#[tokio::test]
async fn the_next_worker_survives_the_kill_of_the_one_before() {
    // Both real; only their start times are made up, because they are no children of a real agent.
    let (mut left, left_pid) = sleeper();
    let (mut next, next_pid) = sleeper();
    let proc = FakeProc::new();
    let asked = boot_nanos();
    proc.add(left_pid, asked / TICK_NANOS - 1);
    proc.add(next_pid, asked / TICK_NANOS + 1);
    let killer = proc.killer();
    killer.kill(ask(asked));
    assert_eq!(left.wait().await.unwrap().signal(), Some(9));
    fs::remove_dir_all(proc.0.path().join(left_pid.to_string())).unwrap();
    idle(&killer).await;
    assert_eq!(next.try_wait().unwrap(), None, "a healthy worker");

    // Asked again later, it is meant too.
    while boot_nanos() / TICK_NANOS < asked / TICK_NANOS + 2 {
        tokio::task::yield_now().await;
    }
    killer.kill(ask(boot_nanos()));
    assert_eq!(next.wait().await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn an_agent_of_before_means_what_runs_now() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 1);
    proc.killer().kill(ask(0));
    assert_eq!(child.wait().await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn an_ask_that_was_taken_back_kills_nothing() {
    let (killer, id) = (FakeProc::new().killer(), ContainerId::from(ID));
    killer.asked().insert(id.clone(), Some(7));
    killer.spare(&id);
    assert_eq!(killer.before(&id), None);
    // Without an ask the first round is the last one.
    killer.kill_all(&ask(7)).await;
}

#[tokio::test(start_paused = true)]
async fn who_changes_his_mind_again_and_again_has_one_task_at_work() {
    let (killer, id) = (FakeProc::new().killer(), ContainerId::from(ID));
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..1_000 {
        killer.kill(ask(7));
        killer.spare(&id);
    }
    assert_eq!(tasks(), 1);
    idle(&killer).await;
}

#[tokio::test]
async fn who_has_the_number_of_another_by_now_lives() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    let (killer, id) = (proc.killer(), ContainerId::from(ID));
    // When it was listed, that was an earlier process; or it was in the container.
    proc.add(pid, 8);
    assert!(matches!(killer.kill_one(&id, pid, 7), Err(KillError::Gone)));
    fs::write(proc.0.path().join(format!("{pid}/cgroup")), "0::/elsewhere\n").unwrap();
    assert!(matches!(killer.kill_one(&id, pid, 8), Err(KillError::Gone)));
    assert_eq!(child.try_wait().unwrap(), None);
    fs::write(
        proc.0.path().join(format!("{pid}/cgroup")),
        format!("0::/pod1/{ID}\n"),
    )
    .unwrap();
    killer.kill_one(&id, pid, 8).unwrap();
    assert_eq!(child.wait().await.unwrap().signal(), Some(9));
}

/// A process that is another one in `/proc` once it is held: its number has changed hands in between.
#[tokio::test]
async fn what_is_held_is_looked_at_after_that_and_not_before() {
    thread_local! {
        static STAT: std::cell::RefCell<PathBuf> = std::cell::RefCell::default();
    }
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 7);
    STAT.set(proc.0.path().join(format!("{pid}/stat")));
    let mut killer = proc.killer();
    killer.open = |pid| {
        let held = Held::open(pid);
        STAT.with_borrow(|path| fs::write(path, stat(pid, 'S', AGENT, 8)).unwrap());
        held
    };
    let id = ContainerId::from(ID);
    assert!(matches!(killer.kill_one(&id, pid, 7), Err(KillError::Gone)));
    assert_eq!(child.try_wait().unwrap(), None);
}

#[tokio::test]
async fn nothing_is_killed_by_its_number_where_there_are_no_pidfds() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 1);
    let mut killer = proc.killer();
    killer.open = |_| Err(KillError::NoPidfd(rustix::io::Errno::NOSYS));
    killer.kill(ask(0));
    idle(&killer).await;
    assert_eq!(child.try_wait().unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn who_asks_without_end_is_looked_for_once_in_a_second_and_others_at_once() {
    let killer = FakeProc::new().killer();
    let (loud, other) = (ContainerId::from(ID), ContainerId::from("other"));
    let looks = (0..31_000).filter(|_| killer.may_look(&loud)).count();
    assert_eq!(looks, LOOKS.0 as usize);
    assert!(killer.may_look(&other));
    for _ in 0..5 {
        tokio::time::advance(LOOKS.1).await;
        assert!(killer.may_look(&loud) && !killer.may_look(&loud));
    }
    // Who has asked long ago is forgotten.
    tokio::time::advance(LOOKS.1 * LOOKS.0).await;
    assert!(killer.may_look(&"third".into()));
    assert_eq!(killer.looks.lock().unwrap().len(), 1);
}

proptest! {
    /// A process calls itself what it likes.
    #[test]
    fn no_name_hides_a_process_or_makes_another_of_it(
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
