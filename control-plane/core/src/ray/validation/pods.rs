//! Quantities in pod templates. The definitions of Ray's resources do not check pod templates, so
//! an invalid quantity would be stored. Typed clients such as Kueue could then not even read a list
//! with such an object.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::ray::RayClusterSpec;
use serde_json::Value;

use crate::common::violation::Violation;
use crate::ray::text;

/// Fields that are maps of quantities, anywhere in a pod template.
const MAPS: [&str; 3] = ["limits", "requests", "overhead"];
/// Fields that are a quantity.
const SINGLE: [&str; 2] = ["sizeLimit", "divisor"];
/// Fields with names of the user's choice, which are not checked.
const FREE: [&str; 6] = [
    "labels",
    "annotations",
    "nodeSelector",
    "matchLabels",
    "volumeAttributes",
    "options",
];
/// The suffixes of a number.
const SUFFIXES: [&str; 16] = [
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
];

/// Adds the invalid quantities of the cluster spec at `path`.
pub(super) fn validate(path: &str, spec: &RayClusterSpec, violations: &mut Vec<Violation>) {
    let head = &spec.head_group_spec.template;
    template(&format!("{path}.headGroupSpec.template"), head, violations);
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        let path = format!("{path}.workerGroupSpecs[{index}].template");
        template(&path, &group.template, violations);
    }
}

/// Adds the invalid quantities of a pod template.
pub(super) fn template(path: &str, template: &PodTemplateSpec, violations: &mut Vec<Violation>) {
    if let Ok(Value::Object(fields)) = serde_json::to_value(&template.spec) {
        for (name, value) in &fields {
            walk(&format!("{path}.spec.{name}"), name, value, violations);
        }
    }
}

fn walk(path: &str, name: &str, value: &Value, violations: &mut Vec<Violation>) {
    match value {
        Value::Object(fields) if MAPS.contains(&name) => {
            for (name, value) in fields {
                quantity(&format!("{path}.{name}"), value, violations);
            }
        }
        value if SINGLE.contains(&name) => quantity(path, value, violations),
        Value::Object(fields) if !FREE.contains(&name) => {
            for (name, value) in fields {
                walk(&format!("{path}.{name}"), name, value, violations);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&format!("{path}[{index}]"), "", item, violations);
            }
        }
        _ => {}
    }
}

fn quantity(path: &str, value: &Value, violations: &mut Vec<Violation>) {
    if let Some(text) = value.as_str().filter(|text| !is_quantity(text)) {
        let shown = text::beginning(text);
        violations.push(Violation::with_value(
            path,
            &shown,
            "must be a quantity, such as 500m, 2 or 1Gi",
        ));
    }
}

/// True if Kubernetes parses a text as a quantity (`resource.ParseQuantity`).
fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let has_digit = number.contains(|c: char| c.is_ascii_digit());
    let exponent = suffix.strip_prefix(['e', 'E']);
    let is_exponent = exponent.is_some_and(|exponent| exponent.parse::<i32>().is_ok());
    has_digit && number.matches('.').count() <= 1 && (SUFFIXES.contains(&suffix) || is_exponent)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_what_kubernetes_reads() {
        for good in [
            "1",
            "0.5",
            ".5",
            "5.",
            "+1",
            "-1",
            "100m",
            "1Gi",
            "1e3",
            "1E-3",
            "2E",
            "12345678901234567890123456789n",
        ] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in [
            "", "lots", "1 Gi", "1gi", "1KI", "1.2.3", "e3", "1e", "1e1.5", ".", "--1", "0x1", "1GiB",
        ] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn each_is_named_by_its_path_wherever_it_stands() {
        let stated = json!({
            "metadata": {"labels": {"sizeLimit": "none"}},
            "spec": {
                "nodeSelector": {"divisor": "x"},
                "overhead": {"cpu": "a"},
                "containers": [{
                    "name": "ray",
                    "resources": {"limits": {"cpu": "lots"}, "requests": {"memory": "1Gi", "cpu": "2"}},
                    "env": [{"name": "divisor", "value": "x", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "b"}}}],
                }],
                "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "c"}}}],
                "volumes": [
                    {"name": "v", "emptyDir": {"sizeLimit": "d"}},
                    {"name": "w", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "e"}}}}}},
                ],
            },
        });
        let mut violations = Vec::new();
        template("t", &serde_json::from_value(stated).unwrap(), &mut violations);
        let mut fields: Vec<&str> = violations.iter().map(|found| found.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "t.spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor",
                "t.spec.containers[0].resources.limits.cpu",
                "t.spec.initContainers[0].resources.requests.cpu",
                "t.spec.overhead.cpu",
                "t.spec.volumes[0].emptyDir.sizeLimit",
                "t.spec.volumes[1].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
            ]
        );
    }
}
