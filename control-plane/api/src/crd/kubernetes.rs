//! Facts about Kubernetes' own types (API version 1.36) that their Rust schemas lack: how lists and
//! maps merge, defaults, patterns.

use serde_json::{Map, Value, json};

use super::CrdError;

const PREFIX: &str = "io.k8s.";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const CONDITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";

/// The fields of a template's metadata; the API server drops all others.
const TEMPLATE_META: [&str; 5] = ["annotations", "finalizers", "labels", "name", "namespace"];

/// Lists that merge by key. All other lists of Kubernetes types are atomic, but for [`SET_LISTS`].
const MAP_LISTS: &[(&str, &str, &[&str])] = &[
    ("core.v1.Container", "env", &["name"]),
    ("core.v1.Container", "ports", &["containerPort", "protocol"]),
    ("core.v1.Container", "volumeDevices", &["devicePath"]),
    ("core.v1.Container", "volumeMounts", &["mountPath"]),
    ("core.v1.EphemeralContainer", "env", &["name"]),
    (
        "core.v1.EphemeralContainer",
        "ports",
        &["containerPort", "protocol"],
    ),
    ("core.v1.EphemeralContainer", "volumeDevices", &["devicePath"]),
    ("core.v1.EphemeralContainer", "volumeMounts", &["mountPath"]),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", &["type"]),
    ("core.v1.PodSpec", "containers", &["name"]),
    ("core.v1.PodSpec", "ephemeralContainers", &["name"]),
    ("core.v1.PodSpec", "hostAliases", &["ip"]),
    ("core.v1.PodSpec", "imagePullSecrets", &["name"]),
    ("core.v1.PodSpec", "initContainers", &["name"]),
    ("core.v1.PodSpec", "resourceClaims", &["name"]),
    ("core.v1.PodSpec", "schedulingGates", &["name"]),
    (
        "core.v1.PodSpec",
        "topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
    ),
    ("core.v1.PodSpec", "volumes", &["name"]),
    ("core.v1.ResourceRequirements", "claims", &["name"]),
];

/// Lists that merge as sets.
const SET_LISTS: &[(&str, &str)] = &[
    ("batch.v1.PodFailurePolicyOnExitCodesRequirement", "values"),
    ("core.v1.ContainerRestartRuleOnExitCodes", "values"),
];

/// Types that are replaced whole.
const ATOMIC_TYPES: &[&str] = &[
    "io.k8s.api.core.v1.ConfigMapEnvSource",
    "io.k8s.api.core.v1.ConfigMapKeySelector",
    "io.k8s.api.core.v1.ConfigMapProjection",
    "io.k8s.api.core.v1.ConfigMapVolumeSource",
    "io.k8s.api.core.v1.FileKeySelector",
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.NodeSelector",
    "io.k8s.api.core.v1.NodeSelectorTerm",
    "io.k8s.api.core.v1.ObjectFieldSelector",
    "io.k8s.api.core.v1.ResourceFieldSelector",
    "io.k8s.api.core.v1.SecretEnvSource",
    "io.k8s.api.core.v1.SecretKeySelector",
    "io.k8s.api.core.v1.SecretProjection",
    "io.k8s.api.core.v1.TypedLocalObjectReference",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
];

/// Maps of strings with a stated way to merge.
const MAPS: &[(&str, &str, &str)] = &[
    (
        "core.v1.PersistentVolumeClaimStatus",
        "allocatedResourceStatuses",
        "granular",
    ),
    ("core.v1.PodSpec", "nodeSelector", "atomic"),
];

/// Fields with a default, which are never required.
fn defaults() -> [(&'static str, &'static str, Value); 19] {
    [
        ("core.v1.AzureDiskVolumeSource", "fsType", json!("ext4")),
        ("core.v1.AzureDiskVolumeSource", "readOnly", json!(false)),
        ("core.v1.ConfigMapEnvSource", "name", json!("")),
        ("core.v1.ConfigMapKeySelector", "name", json!("")),
        ("core.v1.ConfigMapProjection", "name", json!("")),
        ("core.v1.ConfigMapVolumeSource", "name", json!("")),
        ("core.v1.ContainerPort", "protocol", json!("TCP")),
        ("core.v1.FileKeySelector", "optional", json!(false)),
        ("core.v1.GRPCAction", "service", json!("")),
        ("core.v1.ISCSIVolumeSource", "iscsiInterface", json!("default")),
        ("core.v1.LocalObjectReference", "name", json!("")),
        ("core.v1.RBDVolumeSource", "keyring", json!("/etc/ceph/keyring")),
        ("core.v1.RBDVolumeSource", "pool", json!("rbd")),
        ("core.v1.RBDVolumeSource", "user", json!("admin")),
        ("core.v1.ScaleIOVolumeSource", "fsType", json!("xfs")),
        (
            "core.v1.ScaleIOVolumeSource",
            "storageMode",
            json!("ThinProvisioned"),
        ),
        ("core.v1.SecretEnvSource", "name", json!("")),
        ("core.v1.SecretKeySelector", "name", json!("")),
        ("core.v1.SecretProjection", "name", json!("")),
    ]
}

/// A number with an optional suffix, the text form of a Quantity.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
/// Form of a condition's reason.
const REASON_PATTERN: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
/// Form of a condition's type, a qualified name.
const CONDITION_TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// Completes the schemas of all Kubernetes types among `types` and drops their documentation. It is
/// ten times as long as the schema, and every cluster has it in `kubectl explain pod`.
pub(super) fn complete(types: &mut Map<String, Value>) -> Result<(), CrdError> {
    for (_, schema) in types.iter_mut().filter(|(name, _)| name.starts_with(PREFIX)) {
        drop_descriptions(schema);
        lists_are_atomic(schema);
    }
    for (type_, name, keys) in MAP_LISTS {
        let list = field(types, &api(type_), name)?;
        list.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        list.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
    }
    for (type_, name) in SET_LISTS {
        field(types, &api(type_), name)?.insert("x-kubernetes-list-type".to_owned(), json!("set"));
    }
    for type_ in ATOMIC_TYPES {
        schema(types, type_)?.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    for (type_, name, merge) in MAPS {
        field(types, &api(type_), name)?.insert("x-kubernetes-map-type".to_owned(), json!(merge));
    }
    for (type_, name, value) in defaults() {
        field(types, &api(type_), name)?.insert("default".to_owned(), value);
        not_required(schema(types, &api(type_))?, name);
    }
    int_or_string(types)?;
    condition(types)?;
    template_meta(types)
}

fn int_or_string(types: &mut Map<String, Value>) -> Result<(), CrdError> {
    for type_ in [QUANTITY, INT_OR_STRING] {
        schema(types, type_)?.insert(
            "anyOf".to_owned(),
            json!([{ "type": "integer" }, { "type": "string" }]),
        );
    }
    schema(types, QUANTITY)?.insert("pattern".to_owned(), json!(QUANTITY_PATTERN));
    Ok(())
}

fn condition(types: &mut Map<String, Value>) -> Result<(), CrdError> {
    let constraints = [
        ("message", json!({ "maxLength": 32768 })),
        ("observedGeneration", json!({ "minimum": 0 })),
        (
            "reason",
            json!({ "maxLength": 1024, "minLength": 1, "pattern": REASON_PATTERN }),
        ),
        ("status", json!({ "enum": ["True", "False", "Unknown"] })),
        (
            "type",
            json!({ "maxLength": 316, "pattern": CONDITION_TYPE_PATTERN }),
        ),
    ];
    for (name, constraint) in constraints {
        if let Value::Object(constraint) = constraint {
            field(types, CONDITION, name)?.extend(constraint);
        }
    }
    Ok(())
}

fn template_meta(types: &mut Map<String, Value>) -> Result<(), CrdError> {
    if let Some(properties) = schema(types, OBJECT_META)?
        .get_mut("properties")
        .and_then(Value::as_object_mut)
    {
        properties.retain(|name, _| TEMPLATE_META.contains(&name.as_str()));
    }
    // Upstream's schema has none for the only remaining list.
    field(types, OBJECT_META, "finalizers")?.remove("x-kubernetes-list-type");
    Ok(())
}

fn api(type_: &str) -> String {
    format!("io.k8s.api.{type_}")
}

fn schema<'a>(
    types: &'a mut Map<String, Value>,
    type_: &str,
) -> Result<&'a mut Map<String, Value>, CrdError> {
    types
        .get_mut(type_)
        .and_then(Value::as_object_mut)
        .ok_or_else(|| CrdError::UnknownType(type_.to_owned()))
}

fn field<'a>(
    types: &'a mut Map<String, Value>,
    type_: &str,
    name: &str,
) -> Result<&'a mut Map<String, Value>, CrdError> {
    schema(types, type_)?
        .get_mut("properties")
        .and_then(|properties| properties.get_mut(name))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| CrdError::UnknownField(type_.to_owned(), name.to_owned()))
}

fn not_required(schema: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|field| field != name);
        if required.is_empty() {
            schema.remove("required");
        }
    }
}

fn properties(schema: &mut Value) -> impl Iterator<Item = &mut Value> {
    schema
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(|properties| properties.iter_mut().map(|(_, property)| property))
}

fn drop_descriptions(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    properties(schema).for_each(drop_descriptions);
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = schema.get_mut(nested) {
            drop_descriptions(nested);
        }
    }
}

fn lists_are_atomic(schema: &mut Value) {
    for property in properties(schema) {
        if let Some(property) = property.as_object_mut()
            && property.get("type").is_some_and(|type_| type_ == "array")
        {
            property.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
        }
    }
}
