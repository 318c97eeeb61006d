//! Validity of certificates.

use jiff::Timestamp;
use x509_parser::pem::Pem;

use super::Report;
use crate::view::time;

/// Days before expiry from which on a warning is given. The control plane renews certificates long
/// before.
const WARN_DAYS: i64 = 30;

/// Checks a bundle of certificates in PEM. One valid certificate is enough: others are being
/// replaced.
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
            format!("{what}: not valid yet"),
            "correct the clocks of these machines",
        );
    };
    let left = until.duration_since(now);
    if until <= now {
        report.error(format!("{what}: expired {} ago", time::ago(until, now)), hint);
    } else if left.as_hours() < WARN_DAYS * 24 {
        report.warning(format!("{what}: expires in {}", time::span(left)), hint);
    } else {
        report.ok(format!("{what}: valid for {}", time::span(left)));
    }
}

fn validity(pem: &Pem) -> Option<(Timestamp, Timestamp)> {
    let validity = pem.parse_x509().ok()?.validity().clone();
    let at = |seconds| Timestamp::from_second(seconds).ok();
    let from = at(validity.not_before.timestamp())?;
    // A certificate without an expiry date says 31 December 9999, the last day that jiff knows.
    let until = at(validity.not_after.timestamp()).unwrap_or(Timestamp::MAX);
    Some((from, until))
}
