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
    // 1 agent; 2 worker, 3 its child; 4 a daemon that was adopted; 10 kubectl exec with child 11 and grandchild 12.
    let stats = list(&[
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 2),
        (4, 1, 4),
        (10, 0, 10),
        (11, 10, 10),
        (12, 11, 12),
    ]);
    let tree = members(&stats, 1);
    assert_eq!(pids(&tree), [2, 3, 4]);
    assert_eq!(groups(&stats, &tree, 1), BTreeSet::from([2, 4]));
}

#[test]
fn groups_shared_with_others_are_left_alone() {
    // 3 stayed in the agent's group, 4 in that of a session from outside, 5 in one outside this namespace.
    let stats = list(&[
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 1),
        (4, 2, 10),
        (5, 2, 0),
        (10, 0, 10),
    ]);
    let tree = members(&stats, 1);
    assert_eq!(pids(&tree), [2, 3, 4, 5]);
    assert_eq!(groups(&stats, &tree, 1), BTreeSet::from([2]));
}

#[test]
fn an_orphan_whose_parent_has_gone_belongs_to_the_agent() {
    let stats = list(&[(1, 0, 1), (5, 4, 5)]);
    assert_eq!(pids(&members(&stats, 1)), [5]);
    // Not so outside a container, where it could be anybody's.
    assert_eq!(
        pids(&members(&list(&[(100, 50, 100), (5, 4, 5)]), 100)),
        Vec::<i32>::new()
    );
}

#[test]
fn a_circle_ends() {
    assert_eq!(
        pids(&members(&list(&[(1, 0, 1), (5, 6, 5), (6, 5, 6)]), 1)),
        Vec::<i32>::new()
    );
}

#[test]
fn a_list_that_changed_while_it_was_read_is_completed() {
    // 20 belongs to 19, which appeared in the session from outside (10) after its place in the list had been passed.
    let mut stats = list(&[(1, 0, 1), (10, 0, 10), (20, 19, 10)]);
    complete(&mut stats, |pid| (pid == 19).then(|| stat(19, 10, 10)));
    assert_eq!(stats.len(), 4);
    assert!(members(&stats, 1).is_empty());

    // 20's parent has gone: it is the agent's now.
    let mut stats = list(&[(1, 0, 1), (20, 19, 10)]);
    complete(&mut stats, |pid| (pid == 20).then(|| stat(20, 1, 10)));
    assert_eq!(pids(&members(&stats, 1)), [20]);

    // Both have gone.
    let mut stats = list(&[(1, 0, 1), (20, 19, 10)]);
    complete(&mut stats, |_| None);
    assert_eq!(stats, list(&[(1, 0, 1)]));
}

#[test]
fn the_list_holds_this_process_and_its_parent() {
    let stats = scan(|_| {});
    let own = std::process::id().cast_signed();
    let parent = std::os::unix::process::parent_id().cast_signed();
    assert_eq!(stats.get(&own).map(|stat| stat.parent), Some(parent));
    assert!(members(&stats, parent).iter().any(|stat| stat.pid == own));
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

proptest! {
    /// A process calls itself what it likes.
    #[test]
    fn no_name_makes_another_process_of_one(
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
