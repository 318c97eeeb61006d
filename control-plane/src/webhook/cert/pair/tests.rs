use jiff::{SignedDuration, Timestamp};

use super::{CA_KEY, CERT, DAYS, KEY, Pair, RENEW, Service, certified};

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
    pair.check(SERVICE, now(), RENEW).unwrap();
    pair.check(SERVICE, after(200), RENEW).unwrap();
    assert!(pair.check(SERVICE, after(300), RENEW).is_err());
    pair.fits(SERVICE, after(300)).unwrap();
    assert!(pair.fits(SERVICE, after(i64::from(DAYS) - 1)).is_err());
    assert!(pair.check(SERVICE, after(i64::from(DAYS) + 1), RENEW).is_err());
    assert!(
        pair.check(
            Service {
                name: "other",
                ..SERVICE
            },
            now(),
            RENEW
        )
        .is_err()
    );
    assert!(
        pair.check(
            Service {
                namespace: "elsewhere",
                ..SERVICE
            },
            now(),
            RENEW
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
    new.check(SERVICE, after(290), RENEW).unwrap();
    assert_ne!(old.ca.cert, new.ca.cert);
    let trusting_the_old = Pair {
        ca: old.ca.clone(),
        ..new.clone()
    };
    trusting_the_old.check(SERVICE, after(290), RENEW).unwrap();
    let trusting_the_new = Pair { ca: new.ca, ..old };
    // The check looks 90 days ahead.
    trusting_the_new.check(SERVICE, after(270), RENEW).unwrap();
}

#[test]
fn parts_of_different_pairs_do_not_fit_together() {
    let (one, other) = (pair(), pair());
    let foreign_ca = Pair {
        ca: other.ca,
        ..one.clone()
    };
    assert!(foreign_ca.check(SERVICE, now(), RENEW).is_err());
    assert!(certified(one.cert.as_bytes(), other.key.as_bytes()).is_err());
    assert!(certified(b"", one.key.as_bytes()).is_err());
    assert!(certified(one.cert.as_bytes(), b"-----BEGIN").is_err());
    let (cert, key) = (one.to_data().remove(CERT), one.to_data().remove(KEY));
    assert!(certified(&cert.unwrap().0, &key.unwrap().0).is_ok());
}

#[test]
fn another_ca_takes_its_place_and_nobody_is_distrusted_in_between() {
    let mut former = pair();
    let step = |pair: &Pair, days| pair.step(SERVICE, after(days)).unwrap();
    assert_eq!(step(&former, 200), None);
    let mut keys = vec![former.ca.key.clone()];
    let mut whys = Vec::new();
    for days in 270..330 {
        let Some((present, why)) = step(&former, days) else {
            continue;
        };
        // A replica may serve what was before, and the API server trust that, while another one is ahead.
        for trusted in [former.trusted(), present.trusted()] {
            for served in [&former, &present] {
                served.is_trusted(&trusted, SERVICE, after(days)).unwrap();
            }
        }
        assert_eq!(Pair::from_data(&present.to_data()).unwrap(), present);
        let mut data = former.to_data();
        data.insert("other".into(), k8s_openapi::ByteString(b"kept".to_vec()));
        present.put(&mut data);
        assert_eq!(Pair::from_data(&data).unwrap(), present);
        assert!(data.contains_key("other"));
        whys.push((why, days));
        keys.push(present.ca.key.clone());
        former = present;
    }
    let (published, signs, forgotten) = (
        "the next CA is published",
        "the next CA signs",
        "the CA before is forgotten",
    );
    let [(first, began), ..] = whys[..] else {
        panic!("no steps")
    };
    assert_eq!(first, published);
    assert_eq!(
        whys,
        [(published, began), (signs, began + 1), (forgotten, began + 31)]
    );
    assert!(keys[0] == keys[1] && keys[1] != keys[2], "the key is another one");
    assert_eq!(former.trusted(), former.ca.cert);
    assert!(!former.to_data().values().any(|part| part.0 == keys[0].as_bytes()));
}
