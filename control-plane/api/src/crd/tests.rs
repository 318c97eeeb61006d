use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::*;

/// Generated once, since it takes a second without optimization.
static DEFINITION: LazyLock<Value> = LazyLock::new(|| definition().unwrap());

const CHART_FILE: &str = include_str!("../../../../charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml");
const UPSTREAM_FILE: &str = include_str!("../../vendor/jobset.x-k8s.io_jobsets.yaml");

/// Everything that may differ from upstream's definition, documentation aside.
const DIFFERENCES: [&str; 13] = [
    // Upstream's generator records its version.
    "- metadata.annotations",
    // KEP-1186.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.activeDeadlineSeconds",
    // Execution policy (KEP-672), with its rules.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.executionPolicy",
    // Gang start.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.gang",
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.x-kubernetes-validations: ExecutionPolicy and DependsOn APIs are mutually exclusive",
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.x-kubernetes-validations: ExecutionPolicy and StartupPolicy APIs are mutually exclusive",
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.x-kubernetes-validations: Value is immutable",
    "+ spec.versions[0].schema.openAPIV3Schema.properties.spec.x-kubernetes-validations: field is immutable unless the JobSet is suspended",
    // Jobs that completed count as succeeded after their removal.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.status.properties.completedJobs",
    // KEP-1282.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.status.properties.executionAttempts",
    // The state of the gangs.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.status.properties.gangs",
    // Restarts in place: the state of the restart coordinator.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.status.properties.inPlaceRestart",
    // KEP-1186.
    "+ spec.versions[0].schema.openAPIV3Schema.properties.status.properties.startTime",
];

#[test]
fn chart_file_is_up_to_date() {
    assert!(
        CHART_FILE == yaml().unwrap(),
        "the chart's CRD is not what the types say: cargo run -p lockstep-api --bin lockstep-crdgen"
    );
}

#[test]
fn equals_upstream_but_for_the_listed_differences() {
    let upstream: Value = serde_yaml_ng::from_str(UPSTREAM_FILE).unwrap();
    let mut differences = Vec::new();
    compare("", &upstream, &DEFINITION, &mut differences);
    assert_eq!(differences, DIFFERENCES);
}

/// The copy that `kubectl apply` keeps in an annotation must stay below 256 KiB.
#[test]
fn is_small_enough_to_apply() {
    let size = DEFINITION.to_string().len();
    assert!(size < 128 * 1024, "{size} bytes");
}

#[test]
fn our_fields_are_documented_and_kubernetes_types_are_not() {
    let crd = definition().unwrap();
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties")
        .unwrap();
    let undocumented: Vec<String> = undocumented("", schema).collect();
    assert_eq!(undocumented, ["metadata"]);

    let template = schema
        .pointer("/spec/properties/replicatedJobs/items/properties/template")
        .unwrap();
    assert!(template["description"].is_string());
    assert!(!template["properties"].to_string().contains("\"description\":\""));
}

/// Our own fields without a description for `kubectl explain`.
fn undocumented<'a>(path: &'a str, properties: &'a Value) -> Box<dyn Iterator<Item = String> + 'a> {
    const KUBERNETES: [&str; 3] = ["template", "templates", "conditions"];
    let fields = properties.as_object().into_iter().flatten();
    Box::new(fields.flat_map(move |(name, field)| {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let mut found: Vec<String> = Vec::new();
        if !KUBERNETES.contains(&name.as_str()) {
            for nested in [&field["properties"], &field["items"]["properties"]] {
                found.extend(undocumented(&path, nested));
            }
        }
        if !field["description"].is_string() {
            found.push(path);
        }
        found
    }))
}

/// Lists what our definition lacks (`-`), adds (`+`) and has with another value (`!`).
fn compare(path: &str, upstream: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (upstream, ours) {
        (Value::Object(upstream), Value::Object(ours)) => {
            let keys: BTreeSet<&String> = upstream.keys().chain(ours.keys()).collect();
            for key in keys {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match (upstream.get(key), ours.get(key)) {
                    (Some(upstream), Some(ours)) => compare(&path, upstream, ours, differences),
                    (Some(_), None) => differences.push(format!("- {path}")),
                    // This is documentation, not a property with that name.
                    (None, Some(Value::String(_))) if key == "description" => {}
                    (None, _) => differences.push(format!("+ {path}")),
                }
            }
        }
        // The order of rules does not matter.
        (Value::Array(upstream), Value::Array(ours)) if path.ends_with(".x-kubernetes-validations") => {
            let rules = |rules: &[Value], without: &[Value], sign: &str| {
                let only = rules.iter().filter(|rule| !without.contains(rule));
                let lines = only
                    .map(|rule| format!("{sign} {path}: {}", rule["message"].as_str().unwrap_or_default()));
                lines.collect::<Vec<_>>()
            };
            differences.extend(rules(upstream, ours, "-"));
            differences.extend(rules(ours, upstream, "+"));
        }
        (Value::Array(upstream), Value::Array(ours)) if upstream.len() == ours.len() => {
            for (index, (upstream, ours)) in upstream.iter().zip(ours).enumerate() {
                compare(&format!("{path}[{index}]"), upstream, ours, differences);
            }
        }
        _ if upstream == ours => {}
        _ => differences.push(format!("! {path}: {upstream} is {ours}")),
    }
}
