use serde_json::{Map, Value, json};

use super::*;
use crate::{FailurePolicyAction, RestartStrategy};

const UPSTREAM_FILE: &str = include_str!("../../vendor/jobset.x-k8s.io_jobsets.yaml");

fn upstream_schema() -> Value {
    let crd: Value = serde_yaml_ng::from_str(UPSTREAM_FILE).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

fn root(mut object: Value) -> Value {
    object["apiVersion"] = json!("jobset.x-k8s.io/v1alpha2");
    object["kind"] = json!("JobSet");
    object["metadata"] = json!({ "name": "train", "namespace": "default" });
    object
}

/// An object with everything that a schema allows, or (`sparse`) with all of its objects and lists
/// but no optional scalar in them.
fn sample(schema: &Value, sparse: bool) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("1");
    }
    match schema["type"].as_str().unwrap() {
        "object" => {
            let mut object = Map::new();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let required = schema["required"]
                    .as_array()
                    .is_some_and(|names| names.contains(&json!(name)));
                let scalar = !matches!(field["type"].as_str(), Some("object" | "array"));
                if !sparse || required || !scalar {
                    object.insert(name.clone(), sample(field, sparse));
                }
            }
            if schema["additionalProperties"].is_object() {
                object.insert("key".to_owned(), sample(&schema["additionalProperties"], sparse));
            }
            Value::Object(object)
        }
        "array" => json!([sample(&schema["items"], sparse)]),
        "string" if schema["format"] == "date-time" => json!("2026-01-02T03:04:05Z"),
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("text")),
        "integer" => json!(7),
        "boolean" => json!(true),
        other => panic!("type {other}"),
    }
}

/// Empty objects, lists and texts mean the same as their absence; `name: ""` of references is also
/// the schema's own default.
fn without_empty(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            let fields: Map<_, _> = fields
                .into_iter()
                .filter_map(|(name, field)| without_empty(field).map(|field| (name, field)))
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.into_iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::String(text) if text.is_empty() => None,
        other => Some(other),
    }
}

#[test]
fn a_full_upstream_object_survives_reading_and_writing() {
    let object = root(sample(&upstream_schema(), false));
    let jobset: JobSet = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&jobset).unwrap(), object);
}

#[test]
fn a_sparse_upstream_object_survives_reading_and_writing() {
    let object = root(sample(&upstream_schema(), true));
    let jobset: JobSet = serde_json::from_value(object.clone()).unwrap();
    let mut written = serde_json::to_value(&jobset).unwrap();
    // Upstream's controller always writes this counter too.
    assert_eq!(
        written["status"].as_object_mut().unwrap().remove("restarts"),
        Some(json!(0))
    );
    assert_eq!(without_empty(written), without_empty(object));
}

#[test]
fn values_of_other_versions_are_kept() {
    let object = root(json!({ "spec": {
        "failurePolicy": {
            "restartStrategy": "Teleport",
            "rules": [{ "name": "r", "action": "" }],
        },
        "successPolicy": { "operator": "Most" },
        "volumeClaimPolicies": [{ "templates": [{ "kind": "Other", "metadata": { "name": "cache" } }] }],
    }}));
    let jobset: JobSet = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(jobset.restart_strategy(), RestartStrategy::Recreate);
    assert_eq!(jobset.spec.volume_claim_policies[0].templates[0].name(), "cache");
    assert_eq!(serde_json::to_value(&jobset).unwrap(), object);
}

#[test]
fn a_jobset_without_spec_is_read() {
    let jobset: JobSet = serde_json::from_value(root(json!({}))).unwrap();
    assert_eq!(jobset.spec, JobSetSpec::default());
    assert_eq!(
        serde_json::to_value(&jobset).unwrap(),
        root(json!({ "spec": {} }))
    );
}

#[test]
fn a_rule_without_name_is_read() {
    let policy: FailurePolicy =
        serde_json::from_value(json!({ "rules": [{ "action": "FailJobSet" }] })).unwrap();
    assert_eq!(policy.rules[0].name, "");
    assert_eq!(policy.rules[0].action, FailurePolicyAction::FailJobSet);
}

#[test]
fn numbers_may_stand_for_quantities() {
    let claim = json!({ "templates": [{ "spec": { "resources": { "requests": { "storage": 4096 } } } }] });
    let policy: VolumeClaimPolicy = serde_json::from_value(claim).unwrap();
    let requests = policy.templates[0]
        .spec
        .clone()
        .unwrap()
        .resources
        .unwrap()
        .requests
        .unwrap();
    assert_eq!(requests["storage"].0, "4096");
}

#[test]
fn enumerations_know_their_values() {
    for value in FailurePolicyAction::VALUES {
        let action = FailurePolicyAction::from(*value);
        assert!(!matches!(action, FailurePolicyAction::Other(_)), "{value}");
        assert_eq!(action.to_string(), *value);
    }
    assert_eq!(FailurePolicyAction::VALUES.len(), 5);
}
