use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

use super::{CERT, Change, DAYS, Pair, RENEW, Service, certified};
use crate::net::tls::rotation::{CA_KEY, Trust};

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

fn data(pair: &Pair) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    pair.put(&mut data);
    data
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
    let whole = data(&pair);
    assert_eq!(Pair::from_data(&whole).unwrap(), pair);
    for key in [CERT, CA_KEY] {
        let mut data = whole.clone();
        data.remove(key);
        assert!(Pair::from_data(&data).unwrap_err().to_string().contains(key));
    }
}

#[test]
fn clients_with_one_ca_certificate_trust_what_is_issued_before_and_after_its_renewal() {
    let old = pair();
    let new = old.renewed(SERVICE, after(290)).unwrap();
    new.check(SERVICE, after(290), RENEW).unwrap();
    assert_ne!(old.authority.current.cert, new.authority.current.cert);
    let trusting_the_old = Pair {
        authority: old.authority.clone(),
        ..new.clone()
    };
    trusting_the_old.check(SERVICE, after(290), RENEW).unwrap();
    let trusting_the_new = Pair {
        authority: new.authority,
        ..old
    };
    // The check looks 90 days ahead.
    trusting_the_new.check(SERVICE, after(270), RENEW).unwrap();
}

#[test]
fn parts_of_different_pairs_do_not_fit_together() {
    let (one, other) = (pair(), pair());
    let foreign_ca = Pair {
        authority: other.authority,
        ..one.clone()
    };
    assert!(foreign_ca.check(SERVICE, now(), RENEW).is_err());
    assert!(certified(one.cert.as_bytes(), other.key.as_bytes()).is_err());
    assert!(certified(b"", one.key.as_bytes()).is_err());
    assert!(certified(one.cert.as_bytes(), b"-----BEGIN").is_err());
    assert!(certified(one.cert.as_bytes(), one.key.as_bytes()).is_ok());
}

#[test]
fn another_ca_takes_over_and_every_certificate_in_between_is_trusted() {
    let mut former = pair();
    let step = |pair: &Pair, days| pair.step(SERVICE, after(days), Trust::Published).unwrap();
    assert_eq!(step(&former, 200), None);
    let mut keys = vec![former.authority.current.key.clone()];
    let mut changes = Vec::new();
    for days in 270..330 {
        while let Some((present, change)) = step(&former, days) {
            // A replica may still serve the former pair, and the API server may still trust it,
            // while another replica is ahead.
            for trusted in [&former, &present].map(|pair| pair.authority.trusted()) {
                for served in [&former, &present] {
                    served.check_trusted(&trusted, SERVICE, after(days)).unwrap();
                }
            }
            let mut data = data(&former);
            data.insert("other".into(), ByteString(b"kept".to_vec()));
            present.put(&mut data);
            assert_eq!(Pair::from_data(&data).unwrap(), present);
            assert!(data.contains_key("other"));
            changes.push((change, days));
            keys.push(present.authority.current.key.clone());
            former = present;
        }
    }
    let [(Change::Made, began), ..] = changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(
        changes,
        [
            (Change::Made, began),
            (Change::Told, began),
            (Change::Signs, began + 1),
            (Change::Forgotten, began + 31)
        ]
    );
    assert!(keys[0] == keys[2] && keys[2] != keys[3], "the key is a new one");
    assert_eq!(former.authority.trusted(), former.authority.current.cert);
    assert!(!data(&former).values().any(|part| part.0 == keys[0].as_bytes()));
}

#[test]
fn a_ca_that_the_api_server_does_not_trust_yet_never_signs() {
    let (mut pair, began) = (pair(), 300);
    for days in began..365 {
        while let Some((next, change)) = pair.step(SERVICE, after(days), Trust::Pending).unwrap() {
            assert_eq!((change, days), (Change::Made, began));
            pair = next;
        }
    }
    // Its certificate expires nevertheless: then the known CA signs another.
    let renewed = pair.renewed(SERVICE, after(364)).unwrap();
    let known = renewed.authority.current.cert.clone();
    renewed.check_trusted(&known, SERVICE, after(600)).unwrap();
    assert_eq!(renewed.authority.current.key, pair.authority.current.key);
}
