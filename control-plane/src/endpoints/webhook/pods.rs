//! Admission of pods: exclusive placement, and PodGroups of gangs.
//!
//! Promises: pods that ask for neither pass, whatever their content, within the limit for any
//! object.

use json_patch::Patch;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::{annotations, labels};
use lockstep_core::gang;
use serde_json::Value;

use super::patch;
use super::refusal::Refusal;
use super::review::{Operation, Request};
use crate::controllers::placement::{Placement, PlacementError};
use crate::k8s::decode_error;

/// Places a new pod, and puts it into the PodGroup of its gang or behind its gate.
pub(super) async fn mutate(request: &Request, placement: &Placement) -> Result<Patch, Refusal> {
    let Some(before) = read(request)? else {
        return Ok(Patch::default());
    };
    let placed = placement.mutate(&before).await?;
    let grouped = gang::mutate(placed.as_ref().unwrap_or(&before));
    let Some(after) = grouped.or(placed) else {
        return Ok(Patch::default());
    };
    patch::diff(&request.object, &before, &after).map_err(|error| Refusal::Internal(error.to_string()))
}

/// Refuses a pod that may not be created yet.
pub(super) async fn validate(request: &Request, placement: &Placement) -> Result<(), Refusal> {
    match read(request)? {
        Some(pod) => Ok(placement.validate(&pod).await?),
        None => Ok(()),
    }
}

/// The pod, if it is being created for a JobSet.
fn read(request: &Request) -> Result<Option<Pod>, Refusal> {
    let annotated = |key: &str| {
        let annotations = request.object.pointer("/metadata/annotations");
        annotations.is_some_and(|annotations| annotations.get(key).is_some_and(Value::is_string))
    };
    if request.operation != Operation::Create || !annotated(labels::JOBSET_NAME) {
        return Ok(None);
    }
    let asks = [annotations::EXCLUSIVE_TOPOLOGY, annotations::GANG_POD_GROUP];
    let mut pod: Pod = match serde_path_to_error::deserialize(&request.object) {
        Ok(pod) => pod,
        Err(error) if asks.into_iter().any(annotated) => {
            return Err(Refusal::Unreadable(format!(
                "Pod: {}",
                decode_error::sentence(&error)
            )));
        }
        Err(_) => return Ok(None),
    };
    let namespace = pod.metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        namespace.clone_from(&request.namespace);
    }
    Ok(Some(pod))
}

impl From<PlacementError> for Refusal {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Refused(_) | PlacementError::Domain(_) => Self::Forbidden(error.to_string()),
            PlacementError::Api(_) | PlacementError::Late => Self::Internal(error.to_string()),
        }
    }
}
