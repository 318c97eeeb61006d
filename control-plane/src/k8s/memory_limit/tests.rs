use super::*;

#[test]
fn a_limit_is_a_number_or_there_is_none() {
    for (text, limit) in [
        ("268435456\n", Some(268_435_456)),
        // Version 1 has this value for no limit: more than any machine has.
        ("9223372036854771712\n", Some(9_223_372_036_854_771_712)),
        ("max\n", None),
        ("", None),
        ("0", None),
        ("-1", None),
    ] {
        assert_eq!(limit_of(text), limit, "{text:?}");
    }
}

#[test]
fn the_machine_has_as_much_as_it_says() {
    let text = "MemTotal:       24561232 kB\nMemFree:          123 kB\n";
    assert_eq!(total_of(text), Some(24_561_232 * 1024));
    assert_eq!(total_of("MemFree: 1 kB\n"), None);
    assert!(limit() > 0);
}

#[test]
fn what_is_taken_is_what_is_resident_without_files() {
    assert_eq!(taken_of("9000 300 100 50 0 700 0\n"), Some(200 * 4096));
    assert_eq!(taken_of("9000 100 300 50 0 700 0\n"), Some(0));
    for nonsense in ["", "9000", "9000 300", "9000 x 100"] {
        assert_eq!(taken_of(nonsense), None, "{nonsense:?}");
    }
    let own = fs::read_to_string("/proc/self/statm").unwrap();
    assert!(taken_of(&own).unwrap() > 0);
}
