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
