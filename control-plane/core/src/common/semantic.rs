//! Semantic comparison of Kubernetes objects.
//!
//! Programs in Go decode objects into structs. There an absent field and one with its zero value
//! are the same, unless the field is a pointer: a client that reads a JobSet and writes it back
//! adds `resources: {}` and `divisor: "0"`. In addition, Kubernetes' `equality.Semantic`, by which
//! upstream finds changes, treats empty and absent lists alike, and compares quantities by their
//! amounts. The lists below follow the types of `k8s.io/api` 0.36 below a Job's template and a
//! volume claim's spec.

use k8s_openapi::serde::Serialize;
use serde_json::{Map, Value};

use crate::common::quantity::billionths;

#[cfg(test)]
mod tests;

/// Structs and maps that are not pointers. Other structs have a meaning even when empty (`emptyDir:
/// {}`).
const OBJECTS: [&str; 14] = [
    "annotations",
    "labels",
    "limits",
    "matchLabels",
    "metadata",
    "nodeSelector",
    "options",
    "overhead",
    "requests",
    "resources",
    "spec",
    "template",
    "userAnnotations",
    "volumeAttributes",
];
/// Maps whose values are the user's own.
const MAPS_OF_STRINGS: [&str; 7] = [
    "annotations",
    "labels",
    "matchLabels",
    "nodeSelector",
    "options",
    "userAnnotations",
    "volumeAttributes",
];
const MAPS_OF_QUANTITIES: [&str; 3] = ["limits", "overhead", "requests"];
const QUANTITIES: [&str; 2] = ["divisor", "sizeLimit"];
/// Booleans that are not pointers.
const BOOLS: [&str; 10] = [
    "chapAuthDiscovery",
    "chapAuthSession",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "readOnly",
    "sslEnabled",
    "stdin",
    "stdinOnce",
    "tty",
];
/// Numbers that are not pointers and may be left out.
const NUMBERS: [&str; 8] = [
    "failureThreshold",
    "generation",
    "hostPort",
    "initialDelaySeconds",
    "partition",
    "periodSeconds",
    "successThreshold",
    "timeoutSeconds",
];
/// The few strings that are pointers.
const POINTERS_TO_STRINGS: [&str; 30] = [
    "apiGroup",
    "cachingMode",
    "completionMode",
    "fsGroupChangePolicy",
    "gmsaCredentialSpec",
    "gmsaCredentialSpecName",
    "hostnameOverride",
    "initiatorName",
    "localhostProfile",
    "managedBy",
    "mountPropagation",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "podGroupName",
    "podReplacementPolicy",
    "preemptionPolicy",
    "procMount",
    "recursiveReadOnly",
    "resourceClaimName",
    "resourceClaimTemplateName",
    "runAsUserName",
    "runtimeClassName",
    "seLinuxChangePolicy",
    "service",
    "stopSignal",
    "storageClassName",
    "succeededIndexes",
    "supplementalGroupsPolicy",
    "volumeAttributesClassName",
    "volumeMode",
];

/// True for fields that are pointers in this struct but not elsewhere. `holder` is the name of the
/// field that holds the struct or the list of structs.
fn is_pointer_in(holder: &str, key: &str) -> bool {
    matches!(
        (holder, key),
        ("azureDisk" | "csi", "fsType" | "readOnly")
            | ("azureDisk", "kind")
            | ("clusterTrustBundle", "name" | "signerName")
            | (
                "containers" | "ephemeralContainers" | "initContainers",
                "restartPolicy"
            )
            | ("dataSourceRef", "namespace")
            | ("hostPath", "type")
            | ("onExitCodes", "containerName")
            | ("options", "value")
            | ("spec", "resources")
    )
}

/// The first few paths at which two objects differ in meaning; empty if they mean the same. `name`
/// is the name of the field that holds them, and begins the paths.
pub(crate) fn changes<T: Serialize + PartialEq>(name: &str, old: &T, new: &T) -> Vec<String> {
    let mut found = Vec::new();
    if old == new {
        return found;
    }
    match (serde_json::to_value(old), serde_json::to_value(new)) {
        (Ok(old), Ok(new)) => differing(
            name.to_owned(),
            &meaning(name, old),
            &meaning(name, new),
            &mut found,
        ),
        // Without JSON they cannot be compared, and count as different.
        _ => found.push(name.to_owned()),
    }
    found
}

/// A value without meaningless fields, and with normalized quantities.
fn meaning(holder: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| {
                    let value = of_field(&key, value);
                    (key, value)
                })
                .filter(|(key, value)| !says_nothing(holder, key, value))
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(|item| meaning(holder, item)).collect(),
        value => value,
    }
}

fn of_field(key: &str, value: Value) -> Value {
    match value {
        Value::Object(map) if MAPS_OF_STRINGS.contains(&key) => Value::Object(map),
        Value::Object(map) if MAPS_OF_QUANTITIES.contains(&key) => {
            let amounts = map.into_iter().map(|(name, value)| (name, amount(value)));
            Value::Object(amounts.collect::<Map<_, _>>())
        }
        value if QUANTITIES.contains(&key) => amount(value),
        value => meaning(key, value),
    }
}

/// Malformed quantities stay as they are.
fn amount(value: Value) -> Value {
    match value.as_str().and_then(billionths) {
        Some(0) => Value::from("0"),
        Some(amount) => Value::from(format!("{amount}n")),
        None => value,
    }
}

/// True if in Go a field of this value equals an absent one.
fn says_nothing(holder: &str, key: &str, value: &Value) -> bool {
    let plain = |list: &[&str]| list.contains(&key) && !is_pointer_in(holder, key);
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty() && plain(&OBJECTS),
        Value::Bool(value) => !value && plain(&BOOLS),
        Value::Number(number) => number.as_i64() == Some(0) && plain(&NUMBERS),
        Value::String(text) if key == "divisor" => text == "0",
        Value::String(text) => {
            text.is_empty() && !POINTERS_TO_STRINGS.contains(&key) && !is_pointer_in(holder, key)
        }
    }
}

fn differing(path: String, old: &Value, new: &Value, found: &mut Vec<String>) {
    /// More would not help.
    const MOST: usize = 5;
    if old == new || found.len() >= MOST {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            for key in old.keys().chain(added) {
                let (old, new) = (old.get(key), new.get(key));
                differing(
                    format!("{path}.{key}"),
                    old.unwrap_or(&Value::Null),
                    new.unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                differing(format!("{path}[{index}]"), old, new, found);
            }
        }
        _ => found.push(path),
    }
}
