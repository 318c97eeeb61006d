use super::*;

#[test]
fn every_name_is_known_and_no_other() {
    let mut features = Features::default();
    for name in Features::NAMES {
        features.set(name, true).unwrap();
    }
    let all = Features {
        in_place_restart: true,
        restart_job: true,
        elastic_jobset: true,
        execution_attempts: true,
        active_deadline: true,
        mutable_resources: true,
    };
    assert_eq!(features, all);
    features.set("InPlaceRestart", false).unwrap();
    assert!(!features.in_place_restart);
    let error = features.set("Elastic", true).unwrap_err().to_string();
    assert!(
        error.starts_with("unrecognized feature gate: Elastic; known are"),
        "{error}"
    );
}

#[test]
fn a_group_is_switched_as_one() {
    let all = |enabled| Features {
        in_place_restart: enabled,
        restart_job: enabled,
        elastic_jobset: enabled,
        execution_attempts: enabled,
        active_deadline: enabled,
        mutable_resources: enabled,
    };
    let mut features = Features::default();
    features.set("AllAlpha", true).unwrap();
    assert_eq!(features, all(true));
    features.set("AllBeta", false).unwrap();
    assert_eq!(features, all(true));
    features.set("AllAlpha", false).unwrap();
    assert_eq!(features, all(false));
}

#[test]
fn what_is_always_on_cannot_be_switched_off() {
    let mut features = Features::default();
    features.set("TLSOptions", true).unwrap();
    assert_eq!(
        features.set("TLSOptions", false).unwrap_err().to_string(),
        "cannot set feature gate TLSOptions to false, feature is locked to true"
    );
    assert_eq!(features, Features::default());
}
