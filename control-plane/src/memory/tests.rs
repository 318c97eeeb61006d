use super::*;

#[test]
fn a_container_without_a_limit_counts_as_one_of_the_chart() {
    for (text, bytes) in [
        ("268435456\n", 268_435_456),
        ("max\n", USUAL),
        ("", USUAL),
        ("0", USUAL),
        ("-1", USUAL),
    ] {
        assert_eq!(limit_of(text), bytes, "{text:?}");
    }
}
