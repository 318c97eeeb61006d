use super::*;

#[test]
fn reads_what_go_reads() {
    let cases = [
        ("0", 0),
        ("+0", 0),
        ("0s", 0),
        ("60s", 60_000_000_000),
        ("+5s", 5_000_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("1.s", 1_000_000_000),
        (".5s", 500_000_000),
        ("300ms", 300_000_000),
        ("2us3ns", 2_003),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("1.9ns", 1),
        ("0.100000000000000000000s", 100_000_000),
        ("0.3333333333333333333h", 1_199_999_999_999),
    ];
    for (text, nanos) in cases {
        assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
    }
}

#[test]
fn says_what_is_wrong() {
    let cases = [
        ("", "it is empty"),
        ("+", "it is empty"),
        ("-1s", "it must not be negative"),
        ("60", "a unit (h, m, s, ms, us or ns) is expected after \"60\""),
        ("1m30", "a unit (h, m, s, ms, us or ns) is expected after \"30\""),
        ("s", "a number is expected at \"s\""),
        (".s", "a number is expected at \".s\""),
        ("1.2.3s", "a number is expected at \"1.2.3s\""),
        ("soon", "a number is expected at \"soon\""),
        ("1d", "unknown unit \"d\", use h, m, s, ms, us or ns"),
        ("60 s", "unknown unit \" s\", use h, m, s, ms, us or ns"),
        ("2562048h", "it is too long"),
        ("99999999999999999999999999999999999999999999h", "it is too long"),
    ];
    for (text, message) in cases {
        assert_eq!(
            parse_duration(text).map_err(|err| err.to_string()),
            Err(message.to_owned()),
            "{text}"
        );
    }
}
