//! Until when certificates are good.

use jiff::Timestamp;
use x509_parser::pem::Pem;

use super::Report;
use crate::view::time;

/// Before their end, by which time the control plane has long renewed them.
const WARN_DAYS: i64 = 30;

/// Says of a bundle of certificates in PEM whether it can be used. One that is good is enough: others are being replaced.
pub(super) fn check(report: &mut Report, what: &str, pem: &[u8], now: Timestamp, hint: &str) {
    let ends: Option<Vec<(Timestamp, Timestamp)>> = Pem::iter_from_buffer(pem)
        .map(|pem| validity(&pem.ok()?))
        .collect();
    let ends = match ends {
        Some(ends) if !ends.is_empty() => ends,
        _ => return report.error(format!("{what}: no certificate in PEM"), hint),
    };
    let begun = ends.iter().filter(|(from, _)| *from <= now);
    let Some(until) = begun.map(|(_, until)| *until).max() else {
        return report.error(
            format!("{what}: not good yet"),
            "set the clocks of these machines right",
        );
    };
    let left = until.duration_since(now);
    if until <= now {
        report.error(format!("{what}: expired {} ago", time::ago(until, now)), hint);
    } else if left.as_hours() < WARN_DAYS * 24 {
        report.warning(format!("{what}: expires in {}", time::span(left)), hint);
    } else {
        report.ok(format!("{what}: good for {}", time::span(left)));
    }
}

fn validity(pem: &Pem) -> Option<(Timestamp, Timestamp)> {
    let validity = pem.parse_x509().ok()?.validity().clone();
    let at = |seconds| Timestamp::from_second(seconds).ok();
    let from = at(validity.not_before.timestamp())?;
    // A certificate without an end says 31 December 9999, which is the last day that there is.
    let until = at(validity.not_after.timestamp()).unwrap_or(Timestamp::MAX);
    Some((from, until))
}
