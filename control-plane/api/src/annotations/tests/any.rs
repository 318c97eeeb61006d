//! Arbitrary annotation values.

use proptest::prelude::*;

use super::*;

/// Values close to valid ones, and far from them.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9.]{0,30}(h|m|s|ms|us|µs|ns|x|/|,| |-){0,3}[0-9]{0,5}(h|m|s)?",
        "\\PC{0,20}",
        ".{0,20}"
    ]
}

/// The message of an error, which must name the annotation and its value.
fn named(key: &str, value: &str, error: &AnnotationError) -> Result<(), TestCaseError> {
    let said = error.to_string();
    prop_assert!(said.starts_with(&format!("annotation {key}: ")), "{}", said);
    prop_assert!(said.contains(&format!("{value:?}")), "{}", said);
    Ok(())
}

proptest! {
    #[test]
    fn a_duration_is_read_or_its_annotation_named(value in text()) {
        type Read = fn(&JobSet) -> Result<Option<Duration>, AnnotationError>;
        let all: [(&str, Read); 5] = [
            (IN_PLACE_TIMEOUT, |jobset| jobset.in_place_timeout().map(Some)),
            (RESTART_GRACE, JobSet::restart_grace),
            (MAX_BACKOFF, |jobset| jobset.max_backoff().map(Some)),
            (HEARTBEAT_TIMEOUT, JobSet::heartbeat_timeout),
            (READY_TIMEOUT, JobSet::ready_timeout),
        ];
        for (key, read) in all {
            match read(&annotated(key, &value)) {
                Ok(read) => prop_assert_eq!(read, parse_duration(&value).ok()),
                Err(error) => named(key, &value, &error)?,
            }
        }
    }

    #[test]
    fn a_list_of_containers_has_names_or_is_refused(value in "[a-z, ]{0,12}|\\PC{0,12}") {
        match annotated(SUPERVISE, &value).supervise() {
            Ok(Some(Supervise::Containers(names))) => {
                prop_assert_eq!(names.len(), value.matches(',').count() + 1);
                prop_assert!(names.iter().all(|name| !name.is_empty() && name.trim() == name));
            }
            Ok(read) => prop_assert_eq!(read, Some(Supervise::Nothing)),
            Err(error) => named(SUPERVISE, &value, &error)?,
        }
    }

    #[test]
    fn failures_within_a_time_are_some_and_in_some_time(failures in any::<i64>(), value in text()) {
        let value = format!("{failures}/{value}");
        match annotated(ESCALATE_AFTER, &value).escalate_after() {
            Ok(read) => {
                let read = read.unwrap();
                prop_assert_eq!(i64::from(read.failures), failures);
                prop_assert!((1..=EscalateAfter::MOST).contains(&read.failures) && read.within >= EscalateAfter::SHORTEST);
            }
            Err(error) => named(ESCALATE_AFTER, &value, &error)?,
        }
    }

    /// Durations as Go prints them.
    #[test]
    fn every_duration_of_go_is_read(nanos in 0..=i64::MAX) {
        let nanos = nanos.unsigned_abs();
        let seconds = nanos / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let text = format!("{hours}h{minutes}m{}.{:09}s", seconds % 60, nanos % 1_000_000_000);
        prop_assert_eq!(parse_duration(&text), Ok(Duration::from_nanos(nanos)));
    }
}
