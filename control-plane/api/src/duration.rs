//! Durations as Go writes them: `60s`, `1m30s`, `1.5h`, `0`.

use std::time::Duration;

use crate::beginning;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// The duration is negative.
    #[error("it must not be negative")]
    Negative,
    /// A part without digits.
    #[error("a number is expected at {0:?}")]
    Number(String),
    /// A number without unit.
    #[error("a unit (h, m, s, ms, us or ns) is expected after {0:?}")]
    MissingUnit(String),
    /// A unit that does not exist.
    #[error("unknown unit {0:?}, use h, m, s, ms, us or ns")]
    Unit(String),
    /// The duration exceeds Go's range.
    #[error("it is too long")]
    TooLong,
}

/// Parses a duration in the syntax of Go's `time.ParseDuration`; negative durations are an error.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (number, tail) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, tail) = split_where(tail, |c| c.is_ascii_digit() || c == '.');
        let scale = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" | "μs" => 1_000,
            "ns" => 1,
            "" => return Err(DurationError::MissingUnit(shown(number))),
            _ if number.is_empty() => return Err(DurationError::Number(shown(rest))),
            unknown => return Err(DurationError::Unit(shown(unknown))),
        };
        let part = scaled(number, scale).ok_or_else(|| DurationError::Number(shown(rest)))?;
        nanos = nanos.saturating_add(part);
        rest = tail;
    }
    // Go counts nanoseconds in an i64.
    match i64::try_from(nanos).map(i64::unsigned_abs) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => Err(DurationError::TooLong),
    }
}

fn split_where(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

/// The resolution for fractional digits, in parts of a nanosecond, so that only the result is
/// truncated.
const PARTS: u128 = 1_000_000_000_000_000_000;

/// `number * scale` for a decimal number such as `1`, `1.5`, `1.` or `.5`.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut total = 0_u128;
    for digit in whole.chars() {
        total = total
            .saturating_mul(10)
            .saturating_add(u128::from(digit.to_digit(10)?));
    }
    let mut place = scale * PARTS;
    let mut parts = 0_u128;
    for digit in fraction.chars() {
        place /= 10;
        parts += place * u128::from(digit.to_digit(10)?);
    }
    Some(total.saturating_mul(scale).saturating_add(parts / PARTS))
}

/// The beginning of a rejected value, for an error message.
pub(crate) fn shown(value: &str) -> String {
    beginning(value, 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_durations_that_go_parses() {
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
    fn errors_say_what_is_wrong() {
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
}
