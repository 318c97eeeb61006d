use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{Service, Step, decide};
use crate::webhook::cert::pair::Pair;

const SERVICE: Service<'_> = Service {
    namespace: "ns",
    name: "service",
};

fn now() -> Timestamp {
    "2026-11-21T08:00:00Z".parse().unwrap()
}

fn secret(data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        data: Some(data),
        ..Secret::default()
    }
}

fn written(secret: Option<&Secret>, at: Timestamp) -> Pair {
    match decide(secret, SERVICE, at).unwrap() {
        Step::Write(pair, _) => pair,
        Step::Use(_) => panic!("it is used as it is"),
    }
}

#[test]
fn what_is_good_is_used_by_all() {
    let pair = Pair::generate(SERVICE, now()).unwrap();
    let step = decide(Some(&secret(pair.to_data())), SERVICE, now()).unwrap();
    assert_eq!(step, Step::Use(pair));
}

#[test]
fn what_is_missing_empty_or_damaged_is_made_anew() {
    let pair = Pair::generate(SERVICE, now()).unwrap();
    let mut without_key = pair.to_data();
    without_key.remove("tls.key");
    let nonsense = pair
        .to_data()
        .into_keys()
        .map(|key| (key, ByteString(b"nonsense".to_vec())));
    for secret in [
        None,
        Some(Secret::default()),
        Some(secret(without_key)),
        Some(secret(nonsense.collect())),
    ] {
        let made = written(secret.as_ref(), now());
        made.fits(SERVICE, now()).unwrap();
    }
}

#[test]
fn what_nears_its_end_is_replaced_in_steps_and_in_a_hurry_renewed_by_the_same_ca() {
    let pair = Pair::generate(SERVICE, now()).unwrap();
    let secret_of = |pair: &Pair| secret(pair.to_data());
    let day = |days: i64| now() + SignedDuration::from_hours(24 * days);
    let announced = written(Some(&secret_of(&pair)), day(300));
    assert_eq!(announced.cert, pair.cert);
    let step = decide(Some(&secret_of(&announced)), SERVICE, day(300)).unwrap();
    assert_eq!(step, Step::Use(announced.clone()));
    let replaced = written(Some(&secret_of(&announced)), day(301));
    assert_ne!(replaced.ca.key, pair.ca.key);

    let renewed = written(Some(&secret_of(&pair)), day(364));
    renewed.fits(SERVICE, day(364)).unwrap();
    assert_eq!(renewed.ca.key, pair.ca.key);
}

#[test]
fn another_service_needs_another_certificate() {
    let pair = Pair::generate(
        Service {
            name: "before",
            ..SERVICE
        },
        now(),
    )
    .unwrap();
    let made = written(Some(&secret(pair.to_data())), now());
    made.fits(SERVICE, now()).unwrap();
}
