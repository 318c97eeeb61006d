use super::*;

const LARGEST: u64 = MOST_WORKERS as u64;

#[test]
fn the_largest_group_finds_room_before_it_has_pods_and_a_second_one_does_not() {
    let mut budget = Budget::default();
    assert!(budget.takes("a", LARGEST, 0));
    assert!(!budget.takes("b", LARGEST, 0));
    // What is looked at again is not counted twice.
    assert!(budget.takes("a", LARGEST, 0));
    budget.release(&"a");
    assert!(budget.takes("b", LARGEST, 0));
}

#[test]
fn who_has_pods_needs_no_room() {
    let mut budget = Budget::default();
    assert!(budget.takes("bomb", LARGEST, 0));
    assert!(budget.takes("another", UNSEEN - LARGEST, 0));
    assert!(!budget.takes("small", 1, 0), "there is none left");
    assert!(budget.takes("small", 8, 1));
    assert!(budget.takes("large", 10_000, 1_000));
    assert!(!budget.takes("large", 10_000, 999), "its pods have gone");
}

#[test]
fn room_follows_the_pods_that_come_and_go() {
    let mut budget = Budget::default();
    assert!(budget.takes("a", LARGEST, 0));
    assert!(budget.takes("a", LARGEST, 9_500));
    assert!(
        budget.takes("b", LARGEST, 0),
        "a has nearly all of its workers in view"
    );
    assert!(!budget.takes("a", LARGEST, 0));
    assert!(budget.takes("b", LARGEST, 0), "it is as it was");
}
