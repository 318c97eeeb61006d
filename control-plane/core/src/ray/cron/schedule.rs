//! When a RayCronJob's jobs start.
//!
//! Promises: it accepts what Kubernetes' CronJob accepts (five fields, `@hourly` and the like), and
//! also 7 for Sunday. The time zone database is compiled in, so a schedule means the same
//! everywhere.
//!
//! If the clock goes forward, a daily start within the gap happens right after it. If the clock
//! goes back, it happens once, the first time. A schedule with several starts a day goes on through
//! both.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};
use lockstep_api::ray::RayCronJobSpec;

use crate::common::violation::Violation;

const SCHEDULE: &str = "spec.schedule";
/// The longest schedule, in bytes. One that lists each minute, hour, day, month and day of the week
/// has 330.
const LONGEST: usize = 1024;
/// The longest name of a time zone, in bytes. Existing names have up to 32.
const LONGEST_ZONE: usize = 255;
const MONTHS: &[&str] = &[
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
/// The names that each field accepts, and its last value.
const FIELDS: [(&[&str], u8); 5] = [(&[], 59), (&[], 23), (&[], 31), (MONTHS, 12), (WEEKDAYS, 6)];

/// Times at which jobs start.
#[derive(Clone, Debug)]
pub struct Schedule {
    cron: Cron,
    zone: TimeZone,
}

impl Schedule {
    /// Reads `schedule` and `timeZone`.
    ///
    /// # Errors
    /// All faults of these fields.
    pub fn of(spec: &RayCronJobSpec) -> Result<Self, Vec<Violation>> {
        let zone = spec.time_zone.as_deref().map_or(Ok(TimeZone::UTC), zone);
        match (cron(&spec.schedule), zone) {
            (Ok(cron), Ok(zone)) => {
                let schedule = Self { cron, zone };
                // Schedules name no year, so one without a time after 1970 has none at all.
                match schedule.next(Timestamp::UNIX_EPOCH) {
                    Some(_) => Ok(schedule),
                    None => Err(vec![Violation::new(
                        SCHEDULE,
                        "invalid cron schedule: no time matches it",
                    )]),
                }
            }
            (cron, zone) => {
                let wrong = [(SCHEDULE, cron.err()), ("spec.timeZone", zone.err())];
                let violation = |(field, error): (&str, Option<String>)| Some(Violation::new(field, error?));
                Err(wrong.into_iter().filter_map(violation).collect())
            }
        }
    }

    /// The first start after `time`, if there is one.
    #[must_use]
    pub fn next(&self, time: Timestamp) -> Option<Timestamp> {
        let found = self.cron.find_next_occurrence(&self.local(time), false).ok()?;
        Some(found.timestamp()).filter(|found| *found > time)
    }

    /// The last start that is not after `time`, if there is one.
    #[must_use]
    pub fn latest(&self, time: Timestamp) -> Option<Timestamp> {
        let found = self.cron.find_previous_occurrence(&self.local(time), true).ok()?;
        Some(found.timestamp()).filter(|found| *found <= time)
    }

    fn local(&self, time: Timestamp) -> Zoned {
        Zoned::new(time, self.zone.clone())
    }
}

fn cron(stated: &str) -> Result<Cron, String> {
    if stated.len() > LONGEST {
        return Err(format!(
            "invalid cron schedule: must be no more than {LONGEST} bytes"
        ));
    }
    let stated = stated.trim();
    if stated.contains("TZ") {
        return Err("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    let fields: Vec<&str> = expand(stated).split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "invalid cron schedule: {stated:?} is neither five fields of cron nor a name such as @hourly"
        ));
    }
    let mut spelled = Vec::with_capacity(FIELDS.len());
    for (field, (names, last)) in fields.into_iter().zip(FIELDS) {
        if !is_plain(field, names) {
            return Err(format!(
                "invalid cron schedule: cannot parse {field:?} of {stated:?}"
            ));
        }
        spelled.push(spell_out(field, last));
    }
    let parser = CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build();
    parser
        .parse(&spelled.join(" "))
        .map_err(|error| format!("invalid cron schedule: {stated:?}: {error}"))
}

/// The five fields that a name stands for.
fn expand(stated: &str) -> &str {
    match stated {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        fields => fields,
    }
}

/// True if a field consists of numbers, these names, `*` and `?`, in lists, ranges and steps. The
/// library accepts more than Kubernetes does.
fn is_plain(field: &str, names: &[&str]) -> bool {
    field.split(['*', '?', ',', '-', '/']).all(|part| {
        part.bytes().all(|byte| byte.is_ascii_digit())
            || names.iter().any(|name| name.eq_ignore_ascii_case(part))
    })
}

/// Rewrites what the library reads differently from Kubernetes: `5/10` is `5-59/10`, `?` and `*/1`
/// are `*`.
fn spell_out(field: &str, last: u8) -> String {
    let parts = field.split(',').map(|part| match part.split_once('/') {
        Some(("*" | "?", "1")) => "*".to_owned(),
        Some((start, step)) if start.starts_with(char::is_alphanumeric) && !start.contains('-') => {
            format!("{start}-{last}/{step}")
        }
        _ => part.replace('?', "*"),
    });
    parts.collect::<Vec<_>>().join(",")
}

fn zone(name: &str) -> Result<TimeZone, String> {
    if name.is_empty() {
        return Err("timeZone must not be empty string, omit the field for UTC".to_owned());
    }
    if name.len() > LONGEST_ZONE {
        return Err(format!(
            "invalid time zone: must be no more than {LONGEST_ZONE} bytes"
        ));
    }
    TimeZoneDatabase::bundled()
        .get(name)
        .map_err(|_| format!("invalid time zone: unknown time zone {name}"))
}
