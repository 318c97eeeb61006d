//! Admission of Ray's resources: refuses what can never run.
//!
//! Promises: resources of another controller pass. So do updates that leave the spec unchanged, and
//! updates of resources that are being deleted, even if they cannot be read.

use kube::Resource;
use lockstep_api::ray::{GROUP, VERSION};
use lockstep_core::ray::admission::{self, RayResource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::refusal::Refusal;
use super::review::{Operation, Request};
use crate::controllers::ray::kuberay::KubeRay;
use crate::k8s::decode_error;

/// Refuses a resource that can never run, or a change that makes it so. Returns the warnings for a
/// valid one.
pub(super) async fn validate<R>(request: &Request, kuberay: &KubeRay) -> Result<Vec<String>, Refusal>
where
    R: RayResource + Resource<DynamicType = ()> + DeserializeOwned,
{
    let (new, old) = (&request.object, &request.old_object);
    let old = match request.operation {
        Operation::Create => None,
        Operation::Update if is_deleting(new) || new.get("spec") == old.get("spec") => return Ok(Vec::new()),
        Operation::Update => Some(old),
        Operation::Delete | Operation::Connect => return Ok(Vec::new()),
    };
    let managers: Vec<Option<&str>> = [Some(new), old].into_iter().flatten().map(managed_by).collect();
    // Checked only if it matters.
    let kuberay = match managers
        .iter()
        .any(|manager| manager.unwrap_or_default().is_empty())
    {
        true => kuberay.runs(&request.namespace).await.map_err(|error| {
            Refusal::Internal(format!("failed to check if KubeRay's controller runs: {error}"))
        })?,
        false => false,
    };
    if !managers
        .into_iter()
        .any(|manager| admission::is_ours(manager, kuberay))
    {
        return Ok(Vec::new());
    }
    let stated = new;
    let new: R = read(new)?;
    // Any readable resource may replace an unreadable one.
    let old = old.and_then(|old| read::<R>(old).ok());
    let violations = admission::validate(old.as_ref(), &new, kuberay);
    if violations.is_empty() {
        let mut warnings = new.warnings(old.as_ref());
        warnings.extend(stated.get("spec").into_iter().flat_map(admission::unknown_fields));
        return Ok(warnings);
    }
    let name = new
        .meta()
        .name
        .clone()
        .or_else(|| new.meta().generate_name.clone());
    Err(Refusal::Invalid {
        group: GROUP,
        kind: R::kind(&()).into_owned(),
        name: name.unwrap_or_default(),
        violations,
    })
}

fn is_deleting(object: &Value) -> bool {
    let since = object.pointer("/metadata/deletionTimestamp");
    since.is_some_and(|since| !since.is_null())
}

fn managed_by(object: &Value) -> Option<&str> {
    object.pointer("/spec/managedBy")?.as_str()
}

fn read<R: Resource<DynamicType = ()> + DeserializeOwned>(object: &Value) -> Result<R, Refusal> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (expected, kind) = (format!("{GROUP}/{VERSION}"), R::kind(&()));
    if (text("apiVersion"), text("kind")) != (&*expected, &*kind) {
        return Err(Refusal::Unreadable(format!(
            "expected {expected} {kind}, not {:?} {:?}",
            text("apiVersion"),
            text("kind")
        )));
    }
    serde_path_to_error::deserialize(object)
        .map_err(|error| Refusal::Unreadable(format!("{kind}: {}", decode_error::sentence(&error))))
}
