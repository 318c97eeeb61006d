//! When jobs start.

use jiff::SignedDuration;
use lockstep_api::ray::RayCronJobSpec;

use super::*;
use crate::ray::cron::Schedule;

fn schedule(schedule: &str, zone: Option<&str>) -> Result<Schedule, String> {
    let spec = RayCronJobSpec {
        schedule: schedule.to_owned(),
        time_zone: zone.map(str::to_owned),
        ..RayCronJobSpec::default()
    };
    Schedule::of(&spec).map_err(|wrong| {
        let messages: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        messages.join("; ")
    })
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The first starts after a given time.
fn starts(stated: &str, zone: Option<&str>, after: &str, count: usize) -> Vec<String> {
    let schedule = schedule(stated, zone).unwrap();
    let all = std::iter::successors(schedule.next(time(after)), |start| schedule.next(*start));
    all.take(count).map(|start| start.to_string()).collect()
}

#[test]
fn five_fields_and_names() {
    let first = |stated: &str| starts(stated, None, "2026-03-04T05:06:07Z", 1).join("");
    for (stated, expected) in [
        ("* * * * *", "2026-03-04T05:07:00Z"),
        ("*/15 * * * *", "2026-03-04T05:15:00Z"),
        ("5/20 * * * *", "2026-03-04T05:25:00Z"),
        ("0 9-17/4 * * mon-fri", "2026-03-04T09:00:00Z"),
        ("0 0 1,15 * ?", "2026-03-15T00:00:00Z"),
        // Either of the two days matches.
        ("0 0 13 * FRI", "2026-03-06T00:00:00Z"),
        ("0 0 13 * */1", "2026-03-13T00:00:00Z"),
        ("0 0 * Jun,jul *", "2026-06-01T00:00:00Z"),
        ("0 0 * * 0", "2026-03-08T00:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("@hourly", "2026-03-04T06:00:00Z"),
        ("@daily", "2026-03-05T00:00:00Z"),
        ("@midnight", "2026-03-05T00:00:00Z"),
        ("@weekly", "2026-03-08T00:00:00Z"),
        ("@monthly", "2026-04-01T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("@annually", "2027-01-01T00:00:00Z"),
    ] {
        assert_eq!(first(stated), expected, "{stated}");
    }
}

#[test]
fn steps_from_a_day_of_the_week_end_on_saturday() {
    assert_eq!(
        starts("0 0 * * fri/1", None, "2026-03-04T05:06:07Z", 3),
        [
            "2026-03-06T00:00:00Z",
            "2026-03-07T00:00:00Z",
            "2026-03-13T00:00:00Z"
        ]
    );
}

#[test]
fn what_kubernetes_does_not_take_is_refused() {
    for stated in [
        "",
        "* * * *",
        "0 * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "*/0 * * * *",
        "30-10 * * * *",
        "/10 * * * *",
        "@every 1h",
        "@reboot",
        "JAN * * * *",
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 * * 5#2",
        "0 0 * * +MON",
        "nonsense",
    ] {
        let error = schedule(stated, None).unwrap_err();
        assert!(error.starts_with("spec.schedule: "), "{stated}: {error}");
    }
    for stated in ["TZ=UTC 0 0 * * *", "CRON_TZ=Europe/Paris 0 0 * * *"] {
        let error = schedule(stated, None).unwrap_err();
        assert!(error.contains("use timeZone field instead"), "{error}");
    }
}

#[test]
fn time_zones_are_those_of_the_iana_database() {
    assert_eq!(
        starts("30 2 * * *", Some("Asia/Kathmandu"), "2026-01-01T00:00:00Z", 2),
        ["2026-01-01T20:45:00Z", "2026-01-02T20:45:00Z"]
    );
    assert!(schedule("@daily", Some("Etc/UTC")).is_ok());
    for zone in ["", "Local", "Mars/Phobos", "+02:00"] {
        let error = schedule("@daily", Some(zone)).unwrap_err();
        assert!(error.starts_with("spec.timeZone: "), "{zone}: {error}");
    }
}

#[test]
fn all_faults_are_reported() {
    let error = schedule("x", Some("y")).unwrap_err();
    assert!(
        error.contains("spec.schedule") && error.contains("spec.timeZone"),
        "{error}"
    );
}

/// In Berlin 2 o'clock is skipped on 29 March 2026, and comes twice on 25 October.
#[test]
fn the_clock_is_put_forward_and_back() {
    let berlin = Some("Europe/Berlin");
    assert_eq!(
        starts("30 2 * * *", berlin, "2026-03-28T12:00:00Z", 2),
        ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        "right after the gap"
    );
    assert_eq!(
        starts("30 2 * * *", berlin, "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        "once"
    );
    assert_eq!(
        starts("*/30 * * * *", berlin, "2026-10-25T00:15:00Z", 4),
        [
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
            "2026-10-25T02:00:00Z"
        ],
        "on through both"
    );
}

/// Looking back and looking ahead find the same times, at any time of a year.
#[test]
fn the_latest_start_is_one_of_all() {
    for stated in [
        "30 2 * * *",
        "0 3 * * *",
        "*/20 * * * *",
        "0 */2 * * *",
        "59 1 * * SUN",
        "@hourly",
    ] {
        for zone in ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"] {
            for day in [
                "2026-03-08",
                "2026-03-29",
                "2026-04-05",
                "2026-10-04",
                "2026-10-25",
                "2026-11-01",
            ] {
                let schedule = schedule(stated, Some(zone)).unwrap();
                let begin = time(&format!("{day}T00:00:00Z")) - SignedDuration::from_hours(24);
                let end = begin + SignedDuration::from_hours(72);
                let starts: Vec<Timestamp> =
                    std::iter::successors(schedule.next(begin), |start| schedule.next(*start))
                        .take_while(|start| *start <= end)
                        .collect();
                let mut now = begin + SignedDuration::from_secs(1);
                while now < end {
                    let expected = starts.iter().rev().find(|start| **start <= now);
                    if let Some(expected) = expected {
                        assert_eq!(
                            schedule.latest(now),
                            Some(*expected),
                            "{stated} in {zone} at {now}"
                        );
                    }
                    now += SignedDuration::from_secs(1799);
                }
            }
        }
    }
}

#[test]
fn a_time_that_never_comes() {
    for stated in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
        let error = schedule(stated, Some("Europe/Berlin")).unwrap_err();
        assert!(error.contains("no time matches it"), "{stated}: {error}");
    }
}

#[test]
fn what_is_too_long_to_be_a_schedule_is_not_read() {
    let all = |last: u8| {
        (0..=last)
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let longest = format!(
        "{} {} {} {} {}",
        all(59),
        all(23),
        &all(31)[2..],
        &all(12)[2..],
        all(6)
    );
    assert!(schedule(&longest, None).is_ok());
    let listed = vec!["1"; 500_000].join(",");
    let error = schedule(&format!("{listed} * * * *"), None).unwrap_err();
    assert_eq!(
        error,
        "spec.schedule: invalid cron schedule: must be no more than 1024 bytes"
    );
    let error = schedule("@daily", Some(&"Europe/".repeat(10_000))).unwrap_err();
    assert_eq!(
        error,
        "spec.timeZone: invalid time zone: must be no more than 255 bytes"
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_schedule_or_is_refused(
        field in "[0-9*/,?-]{0,12}|[a-zA-Z#L@ ]{0,6}|\\PC{0,8}",
        stated in "([0-9*/,-]{1,5} ){4}[0-9*/,a-zA-Z-]{1,5}|\\PC{0,40}",
        zone in "[A-Za-z/_+-]{0,20}|\\PC{0,12}",
    ) {
        for stated in [stated.as_str(), &format!("{field} * * * *"), &format!("* * {field} * *"), &format!("0 0 * {field} {field}")] {
            if let Ok(schedule) = schedule(stated, None) {
                let after = time("2026-03-04T05:06:07Z");
                proptest::prop_assert!(schedule.next(after).is_some_and(|next| next > after));
                proptest::prop_assert!(schedule.latest(after).is_none_or(|latest| latest <= after));
            }
        }
        let _ = schedule("@daily", Some(&zone));
    }
}
