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
