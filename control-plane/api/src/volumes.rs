//! `spec.volumeClaimPolicies`: claims that a set's pods share.

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::string_enum;

/// Persistent volume claims, and what happens to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "message": "namespace cannot be set for VolumeClaimPolicies templates",
    "rule": "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)",
}]))]
pub struct VolumeClaimPolicy {
    /// The claims to create, each called `<template name>-<jobset>`, in the JobSet's namespace. A
    /// container of the set must mount each by its template name, and no template may declare a
    /// volume of that name itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "atomic"))]
    pub templates: Vec<VolumeClaimTemplate>,

    /// What happens to the claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_policy: Option<VolumeRetentionPolicy>,
}

/// A persistent volume claim to create.
///
/// Upstream embeds a whole PersistentVolumeClaim. This is the same on the wire, but apiVersion and
/// kind, which users leave out, are not added when an object is written back: the field is
/// immutable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimTemplate {
    /// `v1`, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,

    /// `PersistentVolumeClaim`, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,

    /// Name, labels and annotations of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,

    /// What the claim requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<PersistentVolumeClaimSpec>,

    /// Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PersistentVolumeClaimStatus>,
}

impl VolumeClaimTemplate {
    /// The template's name, which the containers mount it by.
    pub fn name(&self) -> &str {
        self.metadata
            .as_ref()
            .and_then(|meta| meta.name.as_deref())
            .unwrap_or_default()
    }
}

/// What happens to a set's claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRetentionPolicy {
    /// What happens to the claims when the JobSet is deleted: `Delete` or `Retain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Delete"))]
    pub when_deleted: Option<RetentionPolicy>,
}

string_enum! {
    /// What happens to claims when their JobSet is deleted.
    pub enum RetentionPolicy {
        /// They are deleted with it.
        Delete,
        /// They stay.
        Retain,
    }
}
