//! Which object controls another.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::{GROUP, JobSet, KIND, VERSION};

/// The owner that controls an object, if any.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// True if the object is controlled by the JobSet with this UID.
#[must_use]
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// The JobSet as the controlling owner of the objects that it creates.
pub(crate) fn owner_reference(jobset: &JobSet) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.to_owned(),
        name: jobset.name().to_owned(),
        uid: jobset.uid_str().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
