use super::*;

const LARGEST: u64 = MOST_WORKERS as u64;

fn takes(budget: &mut Budget<&'static str>, key: &'static str, workers: u64, pods: usize) -> bool {
    budget.takes(key, "ns", (workers, pods), false)
}

#[test]
fn the_largest_group_finds_room_before_it_has_pods_and_a_second_one_does_not() {
    let mut budget = Budget::default();
    assert!(takes(&mut budget, "a", LARGEST, 0));
    assert!(!takes(&mut budget, "b", LARGEST, 0));
    // A group that is looked at again is not counted twice.
    assert!(takes(&mut budget, "a", LARGEST, 0));
    budget.release(&"a");
    assert!(takes(&mut budget, "b", LARGEST, 0));
}

#[test]
fn who_has_pods_needs_no_room() {
    let mut budget = Budget::default();
    assert!(takes(&mut budget, "bomb", LARGEST, 0));
    assert!(takes(&mut budget, "another", UNSEEN - LARGEST, 0));
    assert!(!takes(&mut budget, "small", 1, 0), "there is none left");
    assert!(takes(&mut budget, "small", 8, 1));
    assert!(takes(&mut budget, "large", 10_000, 1_000));
    assert!(!takes(&mut budget, "large", 10_000, 999), "its pods are gone");
}

#[test]
fn room_follows_the_pods_that_come_and_go() {
    let mut budget = Budget::default();
    assert!(takes(&mut budget, "a", LARGEST, 0));
    assert!(takes(&mut budget, "a", LARGEST, 9_500));
    assert!(
        takes(&mut budget, "b", LARGEST, 0),
        "a has nearly all of its workers in view"
    );
    assert!(!takes(&mut budget, "a", LARGEST, 0));
    assert!(takes(&mut budget, "b", LARGEST, 0), "it is as it was");
}

#[test]
fn a_group_whose_pods_are_gone_for_a_moment_stays_one_whatever_others_take() {
    let mut budget = Budget::default();
    assert!(budget.takes("train", "good", (4, 4), false));
    assert!(budget.takes("bomb", "evil", (UNSEEN, 0), false));
    assert!(!budget.takes("new", "good", (4, 0), false));
    assert!(budget.takes("train", "good", (4, 0), true));
    // Its own namespace has no extra room.
    assert!(!budget.takes("grown", "evil", (1, 0), true));
}
