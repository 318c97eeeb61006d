use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use super::tree::tests::{AGENT, FakeProc, ID, stat};
use super::*;

fn killer(proc: &FakeProc) -> ProcKiller {
    ProcKiller::new(proc.path().to_owned())
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
        before: (before != 0).then_some(BootNanos(before)),
    }
}

/// Waits until nothing is being killed.
async fn idle(killer: &ProcKiller) {
    while !killer.asked().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn only_processes_that_certainly_started_before_the_request_are_covered() {
    let now = BootNanos(9 * TICK_NANOS);
    assert_eq!(fence(Some(BootNanos(5 * TICK_NANOS + 1)), now), 5);
    assert_eq!(fence(Some(BootNanos(u64::MAX)), now), 9, "no later process");
    assert_eq!(fence(None, now), 9, "an older agent does not say");
}

#[tokio::test]
async fn the_next_worker_survives_the_kill_of_the_one_before() {
    // Both real; only their start times are made up, because they are no children of a real agent.
    let (mut left, left_pid) = sleeper();
    let (mut next, next_pid) = sleeper();
    let proc = FakeProc::new();
    let asked = boot_nanos();
    let tick = asked.0 / TICK_NANOS;
    proc.add(left_pid, tick - 1);
    proc.add(next_pid, tick + 1);
    let killer = killer(&proc);
    killer.kill(ask(asked.0));
    assert_eq!(left.wait().await.unwrap().signal(), Some(9));
    fs::remove_dir_all(proc.path().join(left_pid.to_string())).unwrap();
    idle(&killer).await;
    assert_eq!(next.try_wait().unwrap(), None, "a healthy worker");

    // A later request covers it, too.
    while boot_nanos().0 / TICK_NANOS < tick + 2 {
        tokio::task::yield_now().await;
    }
    killer.kill(ask(boot_nanos().0));
    assert_eq!(next.wait().await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_request_of_an_older_agent_covers_what_runs_now() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 1);
    killer(&proc).kill(ask(0));
    assert_eq!(child.wait().await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn listed_children_die() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::with_children();
    proc.add(pid, 1);
    proc.lists(AGENT, AGENT, &format!("{pid} "));
    let killer = killer(&proc);
    killer.kill(ask(0));
    assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    // It is still listed, but gone: there may be more, until nothing is listed.
    fs::remove_dir_all(proc.path().join(pid.to_string())).unwrap();
    let left = || killer.tree.below(AGENT, &ContainerId::from(ID));
    assert!(!left().is_whole);
    proc.lists(AGENT, AGENT, "");
    idle(&killer).await;
    assert!(left().is_whole);
}

#[tokio::test]
async fn a_withdrawn_request_kills_nothing() {
    let (killer, id) = (killer(&FakeProc::new()), ContainerId::from(ID));
    killer.asked().insert(id.clone(), Some(7));
    killer.spare(&id);
    assert_eq!(killer.before(&id), None);
    // Without a request the first round is the last one.
    killer.kill_all(&ask(7)).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_keeps_changing_its_mind_has_one_task() {
    let (killer, id) = (killer(&FakeProc::new()), ContainerId::from(ID));
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..1_000 {
        killer.kill(ask(7));
        killer.spare(&id);
    }
    assert_eq!(tasks(), 1);
    idle(&killer).await;
}

#[tokio::test]
async fn a_process_that_reuses_a_pid_survives() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    let (killer, id) = (killer(&proc), ContainerId::from(ID));
    // When it was listed, that was an earlier process; or it was in the container.
    proc.add(pid, 8);
    assert!(matches!(killer.kill_one(&id, pid, 7), Err(KillError::Gone)));
    fs::write(proc.path().join(format!("{pid}/cgroup")), "0::/elsewhere\n").unwrap();
    assert!(matches!(killer.kill_one(&id, pid, 8), Err(KillError::Gone)));
    assert_eq!(child.try_wait().unwrap(), None);
    fs::write(
        proc.path().join(format!("{pid}/cgroup")),
        format!("0::/pod1/{ID}\n"),
    )
    .unwrap();
    killer.kill_one(&id, pid, 8).unwrap();
    assert_eq!(child.wait().await.unwrap().signal(), Some(9));
}

/// A process that is another one in `/proc` once it is held: its PID was reused in between.
#[tokio::test]
async fn a_process_is_checked_after_it_is_held() {
    thread_local! {
        static STAT: std::cell::RefCell<PathBuf> = std::cell::RefCell::default();
    }
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 7);
    STAT.set(proc.path().join(format!("{pid}/stat")));
    let mut killer = killer(&proc);
    killer.open = |pid| {
        let held = PidFd::open(pid);
        STAT.with_borrow(|path| fs::write(path, stat(pid, 'S', AGENT, 8)).unwrap());
        held
    };
    let id = ContainerId::from(ID);
    assert!(matches!(killer.kill_one(&id, pid, 7), Err(KillError::Gone)));
    assert_eq!(child.try_wait().unwrap(), None);
}

#[tokio::test]
async fn without_pidfds_nothing_is_killed() {
    let (mut child, pid) = sleeper();
    let proc = FakeProc::new();
    proc.add(pid, 1);
    let mut killer = killer(&proc);
    killer.open = |_| Err(KillError::NoPidfd(rustix::io::Errno::NOSYS));
    killer.kill(ask(0));
    idle(&killer).await;
    assert_eq!(child.try_wait().unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn endless_requests_cause_one_look_a_second_and_delay_no_others() {
    let killer = killer(&FakeProc::new());
    let (loud, other) = (ContainerId::from(ID), ContainerId::from("other"));
    let looks = (0..31_000).filter(|_| killer.may_look(&loud)).count();
    assert_eq!(looks, LOOKS.burst as usize);
    assert!(killer.may_look(&other));
    for _ in 0..5 {
        tokio::time::advance(LOOKS.every).await;
        assert!(killer.may_look(&loud) && !killer.may_look(&loud));
    }
    // A container whose agent asked long ago is forgotten.
    tokio::time::advance(LOOKS.every * LOOKS.burst).await;
    assert!(killer.may_look(&"third".into()));
    assert_eq!(killer.looks.lock().unwrap().len(), 1);
}
