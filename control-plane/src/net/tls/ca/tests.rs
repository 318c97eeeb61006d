use jiff::Timestamp;

use super::{Ca, Validity};

#[test]
fn a_renewed_ca_has_its_old_key() {
    let validity = Validity::days(Timestamp::UNIX_EPOCH, 1);
    let ca = Ca::generate("ca", Some(validity)).unwrap();
    let renewed = ca.renewed(Validity::days(Timestamp::UNIX_EPOCH, 2)).unwrap();
    assert_eq!((renewed.name, &renewed.key), (ca.name, &ca.key));
    assert_ne!(renewed.cert, ca.cert);
}

#[test]
fn the_end_of_time_is_no_reason_to_panic() {
    for now in [Timestamp::MIN, Timestamp::MAX] {
        let validity = Validity::days(now, i32::MAX);
        assert!(validity.from <= validity.to);
    }
}

#[test]
fn what_is_read_is_told_apart_from_what_is_damaged() {
    let now: Timestamp = "2026-11-21T08:00:00Z".parse().unwrap();
    let ca = Ca::generate("ca", Some(Validity::days(now, 10))).unwrap();
    let day = |days: i64| now + jiff::SignedDuration::from_hours(24 * days);
    assert!(ca.is_whole());
    assert_eq!(
        [-2, -1, 0].map(|days| ca.has_begun(day(days))),
        [false, true, true]
    );
    assert_eq!(
        [0, 9, 10].map(|days| ca.lasts_until(day(days))),
        [true, true, false]
    );
    let other = Ca::generate("ca", None).unwrap();
    for (cert, key) in [(&ca.cert, &other.key), (&ca.key, &ca.key), (&ca.cert, &ca.cert)] {
        let (cert, key) = (cert.clone(), key.clone());
        assert!(
            !Ca {
                name: "ca",
                cert,
                key
            }
            .is_whole()
        );
    }
}
