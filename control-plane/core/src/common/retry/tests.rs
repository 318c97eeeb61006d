use super::*;

#[test]
fn retries_come_ever_more_slowly_and_never_stop() {
    let millis = |failures| delay(failures).as_millis();
    assert_eq!(
        [millis(1), millis(2), millis(3), millis(12)],
        [100, 200, 400, 204_800]
    );
    assert_eq!(
        [millis(13), millis(40), millis(u32::MAX)],
        [300_000, 300_000, 300_000]
    );
}

#[test]
fn changes_wait_for_a_second_at_most() {
    let rests = std::array::from_fn(|failures| rest(failures as u32).as_millis());
    assert_eq!(rests, [0, 0, 100, 200, 400, 800, 1000, 1000]);
    assert_eq!(rest(u32::MAX).as_millis(), 1000);
}

#[test]
fn conflicts_in_a_row_are_spaced() {
    let mut writes = StatusWrites::default();
    let pauses = std::array::from_fn(|_| writes.conflicted().as_millis());
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
}

#[test]
fn writes_that_fail_are_spaced_until_one_is_done() {
    let mut writes = StatusWrites::default();
    let pauses = std::array::from_fn(|_| writes.failed().as_millis());
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert_eq!(
        [writes.conflicted(), writes.conflicted()].map(|pause| pause.as_millis()),
        [0, 10]
    );
    writes.done();
    assert_eq!(writes.failed().as_millis(), 50);
    assert_eq!(writes.conflicted().as_millis(), 0);
}
