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
