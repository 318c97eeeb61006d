//! Objects that are parsed only in part.
//!
//! Most fields of an object do not concern the control plane: who manages which field, the
//! containers of a Job's pods, their environment. Parsing a [`Lean`] object skips them, which takes
//! a fraction of the time and memory.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, PodFailurePolicy};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, PodSchedulingGate, PodSpec, PodStatus, PodTemplateSpec, Service, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::runtime::watcher::Event;
use lockstep_api::{annotations, labels};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::cache_entry::{mapped, same_kind_as};
use super::namespace_budget::{Weighs, bytes_of};
use owners::{controller, owners};

pub(crate) mod fetch;
mod jobset;
mod owners;
#[cfg(test)]
mod tests;

/// An object of which only some fields are parsed; the others are unset. It is serialized as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lean<K>(pub(crate) K);

/// The event with the object itself.
pub(super) fn whole<K>(event: Event<Lean<K>>) -> Event<K> {
    mapped(event, |Lean(object)| object)
}

/// A kind that is parsed in part.
pub(crate) trait Slim: Resource<DynamicType = ()> + Sized {
    /// The fields that are parsed.
    type Seen: for<'de> Deserialize<'de> + Into<Self>;
}

impl<'de, K: Slim> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::Seen::deserialize(deserializer).map(|seen| Self(seen.into()))
    }
}

impl<K: Serialize> Serialize for Lean<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<K: Slim> Resource for Lean<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    same_kind_as!(K);

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Metadata without the bookkeeping of field managers and kubectl.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    #[serde(deserialize_with = "owners")]
    owner_references: Option<Vec<OwnerReference>>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "without_copy")]
    annotations: Option<BTreeMap<String, String>>,
}

impl From<Meta> for ObjectMeta {
    fn from(seen: Meta) -> Self {
        Self {
            name: seen.name,
            namespace: seen.namespace,
            uid: seen.uid,
            resource_version: seen.resource_version,
            generation: seen.generation,
            creation_timestamp: seen.creation_timestamp,
            deletion_timestamp: seen.deletion_timestamp,
            deletion_grace_period_seconds: seen.deletion_grace_period_seconds,
            finalizers: seen.finalizers,
            owner_references: seen.owner_references,
            labels: seen.labels,
            annotations: seen.annotations,
            ..Self::default()
        }
    }
}

/// The identity of a child object, and the labels that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ChildMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(deserialize_with = "controller")]
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(deserialize_with = "child_labels")]
    labels: Option<BTreeMap<String, String>>,
}

impl From<ChildMeta> for ObjectMeta {
    fn from(seen: ChildMeta) -> Self {
        Self {
            name: seen.name,
            namespace: seen.namespace,
            uid: seen.uid,
            resource_version: seen.resource_version,
            creation_timestamp: seen.creation_timestamp,
            deletion_timestamp: seen.deletion_timestamp,
            owner_references: seen.owner_references,
            labels: seen.labels,
            ..Self::default()
        }
    }
}

/// An object of which only the metadata is parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Child {
    metadata: ChildMeta,
}

impl Slim for Service {
    type Seen = Child;
}

impl From<Child> for Service {
    fn from(seen: Child) -> Self {
        Self {
            metadata: seen.metadata.into(),
            ..Self::default()
        }
    }
}

impl Weighs for Service {
    fn bytes(&self) -> usize {
        bytes_of_child(&self.metadata) + size_of::<Self>()
    }
}

impl Weighs for PersistentVolumeClaim {
    fn bytes(&self) -> usize {
        bytes_of_child(&self.metadata) + size_of::<Self>()
    }
}

/// The bytes of the texts of [`ChildMeta`].
fn bytes_of_child(meta: &ObjectMeta) -> usize {
    let names = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
    let names = names.into_iter().flatten().map(String::len);
    names.fold(bytes_of(meta), usize::saturating_add)
}

impl Slim for PersistentVolumeClaim {
    type Seen = Child;
}

impl From<Child> for PersistentVolumeClaim {
    fn from(seen: Child) -> Self {
        Self {
            metadata: seen.metadata.into(),
            ..Self::default()
        }
    }
}

/// A Job's numbers, policies and conditions. Of its pod template: the annotations for in-place
/// restarts and gangs, and the lists that a resume appends to. A merge patch changes nothing else
/// there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SeenJob {
    metadata: ChildMeta,
    spec: Option<SeenJobSpec>,
    status: Option<JobStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenJobSpec {
    parallelism: Option<i32>,
    completions: Option<i32>,
    completion_mode: Option<String>,
    backoff_limit: Option<i32>,
    backoff_limit_per_index: Option<i32>,
    managed_by: Option<String>,
    suspend: Option<bool>,
    pod_failure_policy: Option<PodFailurePolicy>,
    template: SeenTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SeenTemplate {
    metadata: Option<SeenMark>,
    spec: Option<SeenLists>,
}

/// The annotations for in-place restarts and gangs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SeenMark {
    #[serde(deserialize_with = "mark")]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenLists {
    tolerations: Option<Vec<Toleration>>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
}

impl Slim for Job {
    type Seen = SeenJob;
}

impl From<SeenJob> for Job {
    fn from(seen: SeenJob) -> Self {
        let status = seen.status.map(|status| JobStatus {
            uncounted_terminated_pods: None,
            ..status
        });
        Self {
            metadata: seen.metadata.into(),
            spec: seen.spec.map(JobSpec::from),
            status,
        }
    }
}

impl From<SeenJobSpec> for JobSpec {
    fn from(seen: SeenJobSpec) -> Self {
        let lists = seen.template.spec.unwrap_or_default();
        Self {
            parallelism: seen.parallelism,
            completions: seen.completions,
            completion_mode: seen.completion_mode,
            backoff_limit: seen.backoff_limit,
            backoff_limit_per_index: seen.backoff_limit_per_index,
            managed_by: seen.managed_by,
            suspend: seen.suspend,
            pod_failure_policy: seen.pod_failure_policy,
            template: PodTemplateSpec {
                metadata: seen.template.metadata.map(|mark| ObjectMeta {
                    annotations: mark.annotations,
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    tolerations: lists.tolerations,
                    scheduling_gates: lists.scheduling_gates,
                    ..PodSpec::default()
                }),
            },
            ..Self::default()
        }
    }
}

/// A pod; of its spec only the node and whatever prevents agents.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SeenPod {
    metadata: Meta,
    spec: Option<SeenPodSpec>,
    status: Option<PodStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenPodSpec {
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    share_process_namespace: Option<bool>,
    #[serde(rename = "hostPID")]
    host_pid: Option<bool>,
    runtime_class_name: Option<String>,
}

impl Slim for Pod {
    type Seen = SeenPod;
}

impl From<SeenPod> for Pod {
    fn from(seen: SeenPod) -> Self {
        Self {
            metadata: seen.metadata.into(),
            spec: seen.spec.map(|spec| PodSpec {
                node_name: spec.node_name,
                node_selector: spec.node_selector,
                share_process_namespace: spec.share_process_namespace,
                host_pid: spec.host_pid,
                runtime_class_name: spec.runtime_class_name,
                ..PodSpec::default()
            }),
            status: seen.status,
        }
    }
}

/// kubectl's annotation with a copy of the whole object.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The labels of Jobs, Services and claims that are read.
const CHILD_LABELS: [&str; 6] = [
    labels::JOBSET_NAME,
    labels::JOBSET_UID,
    labels::REPLICATED_JOB_NAME,
    labels::JOB_INDEX,
    labels::RESTART_ATTEMPT,
    labels::JOB_RESTART_ATTEMPT,
];

/// The annotations of a Job's pod template that are read.
const TEMPLATE_ANNOTATIONS: [&str; 4] = [
    annotations::IN_PLACE,
    annotations::GANG,
    annotations::GANG_MINIMUM,
    annotations::GANG_POD_GROUP,
];

fn without_copy<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    deserializer.deserialize_option(Wanted::by(|key| key != LAST_APPLIED))
}

fn mark<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    deserializer.deserialize_option(Wanted::by(|key| TEMPLATE_ANNOTATIONS.contains(&key)))
}

fn child_labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    deserializer.deserialize_option(Wanted::by(|key| CHILD_LABELS.contains(&key)))
}

/// Parses the first `most` entries of an optional map whose keys are wanted.
struct Wanted {
    is_wanted: fn(&str) -> bool,
    most: usize,
}

impl Wanted {
    /// All entries whose keys are wanted.
    fn by(is_wanted: fn(&str) -> bool) -> Self {
        Self {
            is_wanted,
            most: usize::MAX,
        }
    }

    /// The first `most` entries with any key.
    fn first(most: usize) -> Self {
        Self {
            is_wanted: |_| true,
            most,
        }
    }
}

impl<'de> Visitor<'de> for Wanted {
    type Value = Option<BTreeMap<String, String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut wanted = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if wanted.len() < self.most && (self.is_wanted)(&key) {
                wanted.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Some(wanted))
    }
}
