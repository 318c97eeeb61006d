//! Annotations of Ray's objects that are not supported.

use std::collections::BTreeMap;

use lockstep_api::ray::keys;

/// Annotations of an object.
pub(super) type Annotations<'a> = Option<&'a BTreeMap<String, String>>;

/// The path of the annotation that asks for what is not supported, where it is stated.
pub(crate) fn unsupported_annotation(annotations: Annotations<'_>) -> Option<String> {
    let value = annotations?.get(keys::FAULT_TOLERANCE)?;
    let path = format!("metadata.annotations[{}]", keys::FAULT_TOLERANCE);
    value.eq_ignore_ascii_case("true").then_some(path)
}
