use proptest::prelude::*;

use super::*;

fn stat(pid: i32, parent: i32, group: i32) -> Stat {
    Stat {
        pid,
        name: "x".into(),
        state: 'S',
        parent,
        group,
    }
}

fn list(stats: &[(i32, i32, i32)]) -> BTreeMap<i32, Stat> {
    stats
        .iter()
        .map(|&(pid, parent, group)| (pid, stat(pid, parent, group)))
        .collect()
}

/// Without strangers.
fn seen(stats: &[(i32, i32, i32)]) -> Scan {
    bare(list(stats))
}

fn bare(stats: BTreeMap<i32, Stat>) -> Scan {
    Scan {
        stats,
        ..Default::default()
    }
}

fn pids(tree: &[&Stat]) -> Vec<i32> {
    tree.iter().map(|stat| stat.pid).collect()
}

#[test]
fn parses_any_name() {
    let line = "12 (a) (b c)) R 7 3 4 0 -1 4194560 0 0\n";
    let expected = Stat {
        pid: 12,
        name: "a) (b c)".into(),
        state: 'R',
        parent: 7,
        group: 3,
    };
    assert_eq!(Stat::parse(line), Some(expected));
    for broken in [
        "",
        "12",
        "12 (a)",
        "12 (a) ",
        "12 (a) R",
        "x (a) R 1 1 1",
        "12 (a) R 1",
    ] {
        assert_eq!(Stat::parse(broken), None, "{broken}");
    }
}

#[test]
fn the_tree_is_all_descendants_but_sessions_from_outside() {
    // 1 agent; 2 worker, 3 its child; 4 a daemon that was adopted; 10 kubectl exec with child 11
    // and grandchild 12.
    let seen = seen(&[
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 2),
        (4, 1, 4),
        (10, 0, 10),
        (11, 10, 10),
        (12, 11, 12),
    ]);
    let tree = members(&seen, 1);
    assert_eq!(pids(&tree), [2, 3, 4]);
    assert_eq!(groups(&seen.stats, &tree, 1), BTreeSet::from([2, 4]));
}

#[test]
fn groups_shared_with_others_are_not_signalled() {
    // 3 stayed in the agent's group, 4 in that of a session from outside, 5 in one outside this
    // namespace.
    let seen = seen(&[
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 1),
        (4, 2, 10),
        (5, 2, 0),
        (10, 0, 10),
    ]);
    let tree = members(&seen, 1);
    assert_eq!(pids(&tree), [2, 3, 4, 5]);
    assert_eq!(groups(&seen.stats, &tree, 1), BTreeSet::from([2]));
}

#[test]
fn an_orphan_whose_parent_has_gone_belongs_to_the_agent() {
    assert_eq!(pids(&members(&seen(&[(1, 0, 1), (5, 4, 5)]), 1)), [5]);
    // Not so outside a container: there it could be any process's.
    assert_eq!(
        pids(&members(&seen(&[(100, 50, 100), (5, 4, 5)]), 100)),
        Vec::<i32>::new()
    );
}

#[test]
fn a_cycle_ends() {
    assert_eq!(
        pids(&members(&seen(&[(1, 0, 1), (5, 6, 5), (6, 5, 6)]), 1)),
        Vec::<i32>::new()
    );
}

#[test]
fn a_list_that_changed_while_it_was_read_is_completed() {
    // 20 belongs to 19, which appeared in the session from outside (10) after its place in the list
    // had been passed.
    let mut stats = list(&[(1, 0, 1), (10, 0, 10), (20, 19, 10)]);
    complete(&mut stats, |pid| (pid == 19).then(|| stat(19, 10, 10)));
    assert_eq!(stats.len(), 4);
    assert!(members(&bare(stats), 1).is_empty());

    // 20's parent has gone: it is the agent's now.
    let mut stats = list(&[(1, 0, 1), (20, 19, 10)]);
    complete(&mut stats, |pid| (pid == 20).then(|| stat(20, 1, 10)));
    assert_eq!(pids(&members(&bare(stats), 1)), [20]);

    // Both have gone.
    let mut stats = list(&[(1, 0, 1), (20, 19, 10)]);
    complete(&mut stats, |_| None);
    assert_eq!(stats, list(&[(1, 0, 1)]));
}

#[test]
fn the_list_holds_this_process_and_its_parent() {
    let stats = scan(Path::new("/proc"), |_| {});
    let own = std::process::id().cast_signed();
    let parent = std::os::unix::process::parent_id().cast_signed();
    assert_eq!(stats.get(&own).map(|stat| stat.parent), Some(parent));
    assert!(members(&bare(stats), parent).iter().any(|stat| stat.pid == own));
}

#[test]
fn notes_stay_short() {
    let many: Vec<Stat> = (1..=100).map(|pid| stat(pid, 1, 1)).collect();
    let note = name(&many.iter().collect::<Vec<_>>());
    assert!(
        note.starts_with("pid 1 (x, S), ") && note.ends_with("and 95 more"),
        "{note}"
    );
}

/// A `/proc` of processes, each with its parent and its cgroup, in which this test's own process is
/// `self` and stands for the agent.
struct Fake {
    dir: tempfile::TempDir,
}

const AGENT: i32 = 1;
/// Larger than any PID that this test itself can have.
const WORKER: i32 = 5_000_002;
const CHILD: i32 = 5_000_003;
const DEBUGGER: i32 = 5_000_020;
const ITS_CHILD: i32 = 5_000_021;
const LEFT: i32 = 5_000_022;
const MOVED: i32 = 5_000_023;

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        std::os::unix::fs::symlink(std::process::id().to_string(), dir.path().join("self")).expect("self");
        let fake = Self { dir };
        fake.run(std::process::id().cast_signed(), 0, "/pod7/worker");
        fake.run(AGENT, 0, "/pod7/worker");
        fake
    }

    fn run(&self, pid: i32, parent: i32, cgroup: &str) {
        let at = self.dir.path().join(pid.to_string());
        fs::create_dir_all(&at).expect("its folder");
        fs::write(at.join("stat"), format!("{pid} (x) S {parent} {pid} {pid} 0")).expect("stat");
        fs::write(at.join("cgroup"), format!("4:memory:{cgroup}\n0::/\n")).expect("cgroup");
    }

    fn end(&self, pid: i32) {
        fs::remove_dir_all(self.dir.path().join(pid.to_string())).expect("it was there");
    }

    fn procs(&self) -> Procs {
        Procs::at(AGENT, self.dir.path().to_owned())
    }
}

#[test]
fn the_leftovers_of_a_debugger_are_not_waited_for() {
    let fake = Fake::new();
    // The debugger's first process came from outside; what it left behind has a child, which was
    // moved into the worker's cgroup.
    fake.run(WORKER, AGENT, "/pod7/worker");
    fake.run(CHILD, WORKER, "/pod7/worker");
    fake.run(DEBUGGER, 0, "/pod7/debugger");
    fake.run(ITS_CHILD, DEBUGGER, "/pod7/debugger");
    fake.run(LEFT, AGENT, "/pod7/debugger");
    fake.run(MOVED, LEFT, "/pod7/worker");
    let mut procs = fake.procs();
    assert!(!procs.only_strangers(), "no look has found one yet");
    let seen = procs.scan();
    assert_eq!(pids(&members(&seen, AGENT)), [WORKER, CHILD]);
    assert_eq!(
        groups(&seen.stats, &members(&seen, AGENT), AGENT),
        BTreeSet::from([WORKER, CHILD])
    );
    assert!(!procs.only_strangers());
    fake.end(WORKER);
    // Its parent has gone: it is the worker's, by its cgroup.
    assert_eq!(pids(&members(&procs.scan(), AGENT)), [CHILD]);
    assert!(!procs.only_strangers());
    fake.end(CHILD);
    assert!(procs.only_strangers());
    fake.end(LEFT);
    // Its child's parent has gone, and by its cgroup it is the worker's now.
    assert_eq!(pids(&members(&procs.scan(), AGENT)), [MOVED]);
}

#[test]
fn without_a_readable_cgroup_no_process_is_a_stranger() {
    let fake = Fake::new();
    fs::remove_file(
        fake.dir
            .path()
            .join(std::process::id().to_string())
            .join("cgroup"),
    )
    .expect("it was there");
    fake.run(WORKER, AGENT, "/pod7/worker");
    fake.run(LEFT, AGENT, "/pod7/debugger");
    assert_eq!(pids(&members(&fake.procs().scan(), AGENT)), [WORKER, LEFT]);
}

proptest! {
    /// A process may choose any name.
    #[test]
    fn no_command_name_confuses_the_parser(
        numbers in any::<(i32, i32, i32)>(),
        name in "[ ()RSZX0-9]{0,15}|\\PC{0,15}|.{0,15}",
        state in prop::sample::select(vec!['R', 'S', 'D', 'Z', 'X']),
        garbage in ".{0,60}",
    ) {
        let (pid, parent, group) = numbers;
        let line = format!("{pid} ({name}) {state} {parent} {group} 4 0 -1 4194560 0 0\n");
        prop_assert_eq!(Stat::parse(&line), Some(Stat { pid, name, state, parent, group }));
        let _ = Stat::parse(&garbage);
    }
}
