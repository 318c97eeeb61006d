//! The CustomResourceDefinition of JobSets, generated from the Rust types.
//!
//! The derived schema lacks what the Rust types of Kubernetes do not carry (list types and map
//! keys, defaults, patterns), and is larger than necessary. This module completes the Kubernetes
//! types from the table in `kubernetes.rs`, drops their documentation, and inlines all types, as
//! structural schemas require. The result equals upstream's schema except for additions; a test
//! compares them.

mod inline;
mod kubernetes;

use kube::CustomResourceExt;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{JobSet, KIND};

/// Why the definition could not be generated. Each is a defect of the types, not of any input.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// The derived definition does not serialize, or lacks a part.
    #[error("the derived definition is malformed: {0}")]
    Derived(String),
    /// A schema refers to a type that has none.
    #[error("the schema refers to {0}, which has no definition")]
    UnknownType(String),
    /// The table of Kubernetes types names a field that does not exist.
    #[error("the table of Kubernetes types names {0}.{1}, which does not exist")]
    UnknownField(String, String),
    /// The definition does not serialize.
    #[error(transparent)]
    Yaml(#[from] serde_yaml_ng::Error),
}

const HEADER: &str =
    "# Made by lockstep-crdgen from the Rust types in control-plane/api. Do not edit.\n---\n";

/// The text of the file that the Helm chart ships.
pub fn yaml() -> Result<String, CrdError> {
    Ok(format!("{HEADER}{}", serde_yaml_ng::to_string(&definition()?)?))
}

/// The CustomResourceDefinition, with sorted keys.
pub fn definition() -> Result<Value, CrdError> {
    let mut crd = serde_json::to_value(JobSet::crd()).map_err(|err| CrdError::Derived(err.to_string()))?;
    let schema = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .ok_or_else(|| CrdError::Derived("it has no schema".to_owned()))?;
    *schema = structural_schema()?;
    if let Some(names) = crd.pointer_mut("/spec/names").and_then(Value::as_object_mut) {
        names.insert("listKind".to_owned(), json!(format!("{KIND}List")));
    }
    Ok(sorted(crd))
}

/// The structural schema of a JobSet.
fn structural_schema() -> Result<Value, CrdError> {
    // Not inlined yet, so that Kubernetes types are known by name.
    let root = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<JobSet>()
        .to_value();
    let mut types = match root.get("$defs") {
        Some(Value::Object(types)) => types.clone(),
        _ => return Err(CrdError::Derived("its schema has no types".to_owned())),
    };
    kubernetes::complete(&mut types)?;

    let mut schema = inline::Types(&types).inline(&root)?;
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        // Serde's default keeps a JobSet without spec decodable; it is not part of the API.
        if let Some(spec) = properties.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("default");
        }
        for (name, meta) in object_meta() {
            properties.insert(name, meta);
        }
    }
    Ok(schema)
}

/// The fields of every object that the API server validates itself.
fn object_meta() -> Map<String, Value> {
    let version = "Version of the schema that this object is written in.";
    let kind = "Kind of this object: JobSet.";
    Map::from_iter([
        (
            "apiVersion".to_owned(),
            json!({ "type": "string", "description": version }),
        ),
        (
            "kind".to_owned(),
            json!({ "type": "string", "description": kind }),
        ),
        ("metadata".to_owned(), json!({ "type": "object" })),
    ])
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(Map::from_iter(entries))
        }
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
