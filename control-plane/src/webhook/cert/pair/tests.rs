use jiff::{SignedDuration, Timestamp};

use super::{CA_KEY, CERT, DAYS, KEY, Pair, Service, certified};

const SERVICE: Service<'_> = Service {
    namespace: "ns",
    name: "service",
};

fn now() -> Timestamp {
    "2026-11-21T08:00:00Z".parse().unwrap()
}

fn after(days: i64) -> Timestamp {
    now() + SignedDuration::from_hours(24 * days)
}

fn pair() -> Pair {
    Pair::generate(SERVICE, now()).unwrap()
}

#[test]
fn a_new_pair_is_good_for_its_service_until_shortly_before_its_end() {
    let pair = pair();
    pair.check(SERVICE, now()).unwrap();
    pair.check(SERVICE, after(200)).unwrap();
    assert!(pair.check(SERVICE, after(300)).is_err());
    assert!(pair.check(SERVICE, after(i64::from(DAYS) + 1)).is_err());
    assert!(
        pair.check(
            Service {
                name: "other",
                ..SERVICE
            },
            now()
        )
        .is_err()
    );
    assert!(
        pair.check(
            Service {
                namespace: "elsewhere",
                ..SERVICE
            },
            now()
        )
        .is_err()
    );
}

#[test]
fn it_survives_the_secret() {
    let pair = pair();
    let mut data = pair.to_data();
    assert_eq!(Pair::from_data(&data).unwrap(), pair);
    data.remove(CA_KEY);
    assert!(Pair::from_data(&data).is_err());
}

#[test]
fn who_trusts_one_ca_certificate_trusts_what_is_issued_before_and_after_its_renewal() {
    let old = pair();
    let new = old.renewed(SERVICE, after(290)).unwrap();
    new.check(SERVICE, after(290)).unwrap();
    assert_ne!(old.ca.cert, new.ca.cert);
    let trusting_the_old = Pair {
        ca: old.ca.clone(),
        ..new.clone()
    };
    trusting_the_old.check(SERVICE, after(290)).unwrap();
    let trusting_the_new = Pair { ca: new.ca, ..old };
    // The check looks 90 days ahead.
    trusting_the_new.check(SERVICE, after(270)).unwrap();
}

#[test]
fn parts_of_different_pairs_do_not_fit_together() {
    let (one, other) = (pair(), pair());
    let foreign_ca = Pair {
        ca: other.ca,
        ..one.clone()
    };
    assert!(foreign_ca.check(SERVICE, now()).is_err());
    assert!(certified(one.cert.as_bytes(), other.key.as_bytes()).is_err());
    assert!(certified(b"", one.key.as_bytes()).is_err());
    assert!(certified(one.cert.as_bytes(), b"-----BEGIN").is_err());
    let (cert, key) = (one.to_data().remove(CERT), one.to_data().remove(KEY));
    assert!(certified(&cert.unwrap().0, &key.unwrap().0).is_ok());
}
