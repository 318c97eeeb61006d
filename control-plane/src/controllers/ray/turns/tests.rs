use super::*;

fn all_of(turns: &Turns, namespace: &str) -> Vec<Turn> {
    std::iter::from_fn(|| turns.take(namespace)).collect()
}

#[test]
fn whoever_takes_all_it_can_leaves_room_for_the_next() {
    let turns = Turns::new(96);
    let held: Vec<Vec<Turn>> = (0..8)
        .map(|index| all_of(&turns, &format!("ns-{index}")))
        .collect();
    assert_eq!(held[0].len(), 32);
    assert!(held.iter().all(|held| !held.is_empty()));
    assert!(turns.take("another").is_some());
}

#[test]
fn a_turn_that_is_over_is_free_again() {
    let turns = Turns::new(3);
    let first = turns.take("a");
    let second = turns.take("a");
    assert_eq!((first.is_some(), second.is_some()), (true, false));
    drop(first);
    assert!(turns.take("a").is_some());
    assert!(turns.locked().is_empty(), "no turn is remembered");
}
