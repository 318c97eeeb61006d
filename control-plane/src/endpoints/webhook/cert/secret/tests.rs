use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::{Decision, InjectedBundles, Service, decide};
use crate::endpoints::webhook::cert::pair::Pair;

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

fn data(pair: &Pair) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    pair.put(&mut data);
    data
}

/// Both configurations have it.
fn told(pair: &Pair) -> InjectedBundles {
    let trusted = pair.authority.trusted();
    InjectedBundles {
        mutating: Some(trusted.clone()),
        validating: Some(trusted),
    }
}

fn written(secret: Option<&Secret>, at: Timestamp) -> Pair {
    match decide(secret, SERVICE, at, &InjectedBundles::default()).unwrap() {
        Decision::Write(pair, _) => pair,
        Decision::Use(_) => panic!("it is used as it is"),
    }
}

#[test]
fn what_is_good_is_used_by_all() {
    let pair = Pair::generate(SERVICE, now()).unwrap();
    let step = decide(Some(&secret(data(&pair))), SERVICE, now(), &told(&pair)).unwrap();
    assert_eq!(step, Decision::Use(pair));
}

#[test]
fn a_missing_empty_or_damaged_secret_is_generated_again() {
    let pair = Pair::generate(SERVICE, now()).unwrap();
    let mut without_key = data(&pair);
    without_key.remove("tls.key");
    let nonsense = data(&pair)
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
    let secret_of = |pair: &Pair| secret(data(pair));
    let look = |pair: &Pair, told: &InjectedBundles, days: i64| {
        let at = now() + SignedDuration::from_hours(24 * days);
        match decide(Some(&secret_of(pair)), SERVICE, at, told).unwrap() {
            Decision::Write(next, _) => Some(next),
            Decision::Use(same) => {
                assert_eq!(same, *pair);
                None
            }
        }
    };
    let made = look(&pair, &told(&pair), 300).unwrap();
    assert_eq!(made.cert, pair.cert);
    // One configuration still has the old bundle, or is unknown: that is not enough.
    let (old, new) = (told(&pair), told(&made));
    for half in [
        InjectedBundles {
            mutating: old.mutating,
            ..new.clone()
        },
        InjectedBundles {
            validating: None,
            ..new.clone()
        },
    ] {
        assert_eq!(look(&made, &half, 350), None);
    }
    let announced = look(&made, &new, 300).unwrap();
    assert_eq!(look(&announced, &new, 300), None);
    let replaced = look(&announced, &new, 301).unwrap();
    assert_ne!(replaced.authority.current.key, pair.authority.current.key);

    for old in [&pair, &made] {
        let renewed = look(old, &InjectedBundles::default(), 364).unwrap();
        let day = now() + SignedDuration::from_hours(24 * 364);
        renewed.fits(SERVICE, day).unwrap();
        assert_eq!(renewed.authority.current.key, pair.authority.current.key);
    }
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
    let made = written(Some(&secret(data(&pair))), now());
    made.fits(SERVICE, now()).unwrap();
}
