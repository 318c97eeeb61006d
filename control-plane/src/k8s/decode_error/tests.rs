use lockstep_api::JobSet;
use serde_json::{Value, json};

use super::*;

/// The error for a JobSet with this replicatedJob.
#[track_caller]
fn said(replicated_job: Value) -> String {
    let object = json!({"metadata": {"name": "js"}, "spec": {"replicatedJobs": [replicated_job]}});
    let of_value = serde_path_to_error::deserialize::<_, JobSet>(&object).unwrap_err();
    let text = object.to_string();
    let mut text = serde_json::Deserializer::from_str(&text);
    let of_text = serde_path_to_error::deserialize::<_, JobSet>(&mut text).unwrap_err();
    assert_eq!(sentence(&of_text), sentence(&of_value));
    sentence(&of_value)
}

fn pod(spec: Value) -> Value {
    json!({"name": "w", "template": {"spec": {"template": {"spec": spec}}}})
}

#[test]
fn an_error_names_the_field_its_value_and_the_expected_type() {
    let replicas = |value: Value| said(json!({"name": "w", "replicas": value, "template": {}}));
    const REPLICAS: &str = "spec.replicatedJobs[0].replicas: Invalid value:";
    for (value, expected) in [
        (json!("two"), "\"two\": must be of type integer"),
        (
            json!("a, expected b"),
            "\"a, expected b\": must be of type integer",
        ),
        (json!(1.5), "1.5: must be of type integer"),
        (json!(true), "true: must be of type integer"),
        (json!([1]), "array: must be of type integer"),
        (json!({"a": 1}), "object: must be of type integer"),
        (
            json!(3_000_000_000_u64),
            "3000000000: must be between -2147483648 and 2147483647, inclusive",
        ),
    ] {
        assert_eq!(replicas(value), format!("{REPLICAS} {expected}"));
    }
    assert_eq!(
        said(json!({"name": 7, "template": {}})),
        "spec.replicatedJobs[0].name: Invalid value: 7: must be of type string"
    );
    assert_eq!(
        said(json!("w")),
        "spec.replicatedJobs[0]: Invalid value: \"w\": must be of type object"
    );
    const POD: &str = "spec.replicatedJobs[0].template.spec.template.spec";
    assert_eq!(
        said(pod(json!({"containers": "c"}))),
        format!("{POD}.containers: Invalid value: \"c\": must be of type array")
    );
    assert_eq!(
        said(pod(json!({"containers": [], "hostNetwork": "yes"}))),
        format!("{POD}.hostNetwork: Invalid value: \"yes\": must be of type boolean")
    );
    assert_eq!(
        said(pod(
            json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": true}}}]})
        )),
        format!(
            "{POD}.containers[0].resources.limits.cpu: Invalid value: true: must be of type string or number"
        )
    );
    assert_eq!(
        said(pod(
            json!({"containers": [{"name": "c", "ports": [{"containerPort": "http"}]}]})
        )),
        format!(
            "{POD}.containers[0].ports[0].containerPort: Invalid value: \"http\": must be of type integer"
        )
    );
}

#[test]
fn a_missing_field_is_required_and_other_errors_are_passed_on() {
    assert_eq!(
        in_words("spec", "missing field `name`"),
        "spec.name: Required value"
    );
    assert_eq!(
        in_words("", "missing field `spec` at line 1 column 2"),
        "spec: Required value"
    );
    assert_eq!(
        in_words("spec.at", "premature end of input"),
        "spec.at: Invalid value: premature end of input"
    );
    assert_eq!(
        in_words(
            "spec.at",
            "invalid value: string \"x\", expected an RFC 3339 date"
        ),
        "spec.at: Invalid value: \"x\": must be an RFC 3339 date"
    );
    assert_eq!(
        in_words("", "invalid type: null, expected struct JobSet"),
        "Invalid value: null: must be of type object"
    );
}
