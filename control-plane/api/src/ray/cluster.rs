//! The RayCluster resource.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{Unknown, managed};
use crate::gang::Gang;
use crate::shared::{object, string_enum};

type Map = BTreeMap<String, String>;

/// Fields that request something even if they are empty.
const ASKING: [&str; 4] = [
    "authOptions",
    "gcsFaultToleranceOptions",
    "networkPolicy",
    "tlsOptions",
];

/// Desired state of a RayCluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayCluster",
    plural = "rayclusters",
    namespaced,
    status = "RayClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    schema = "disabled",
    attr = "cfg_attr(true, serde(default))",
    doc = "A Ray cluster: one head, and groups of workers."
)]
#[serde(default, rename_all = "camelCase")]
pub struct RayClusterSpec {
    /// The head.
    pub head_group_spec: HeadGroupSpec,
    /// The groups of workers.
    pub worker_group_specs: Vec<WorkerGroupSpec>,
    /// Version of Ray in the images.
    pub ray_version: Option<String>,
    /// Lets Ray's own autoscaler change the number of workers. Refused.
    pub enable_in_tree_autoscaling: Option<bool>,
    /// If true, the pods are deleted.
    pub suspend: Option<bool>,
    /// The controller that manages the cluster.
    pub managed_by: Option<String>,
    /// Annotations of the head's Service.
    pub head_service_annotations: Map,
    /// The minimum of pods that groups start with, by group name (an addition). Each group, and the
    /// head, is a gang of its own.
    pub gang: Option<Gang>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

/// The head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeadGroupSpec {
    /// Type of the head's Service; `ClusterIP` by default.
    pub service_type: Option<String>,
    /// Flags of `ray start`, without their dashes.
    pub ray_start_params: Option<Map>,
    /// What the head offers, by Ray's names (`CPU`, `GPU`, `memory`, or custom ones).
    pub resources: Map,
    /// Labels of the head as a node of Ray.
    pub labels: Map,
    /// The pod. Ray runs in its first container.
    pub template: PodTemplateSpec,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

/// A group of workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkerGroupSpec {
    /// Name of the group, unique in the cluster.
    pub group_name: String,
    /// How many replicas to run; between the two limits.
    pub replicas: Option<i32>,
    /// The lowest number of replicas.
    pub min_replicas: Option<i32>,
    /// The highest number of replicas.
    pub max_replicas: Option<i32>,
    /// Pods of each replica; 1 by default.
    pub num_of_hosts: Option<i32>,
    /// If true, the group has no pods, whatever the other fields say.
    pub suspend: Option<bool>,
    /// Flags of `ray start`, without their dashes.
    pub ray_start_params: Option<Map>,
    /// What each pod offers, by Ray's names.
    pub resources: Map,
    /// Labels of each pod as a node of Ray.
    pub labels: Map,
    /// The pod. Ray runs in its first container.
    pub template: PodTemplateSpec,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

string_enum! {
    /// State of a RayCluster in one word.
    pub enum RayClusterState {
        /// All pods have been ready.
        #[allow(non_camel_case_types)]
        ready,
        /// The cluster is refused, or its pods have ended for good.
        #[allow(non_camel_case_types)]
        failed,
        /// There are no pods, as `spec.suspend` requests.
        #[allow(non_camel_case_types)]
        suspended,
    }
}

/// Observed state of a RayCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RayClusterStatus {
    /// `ready`, `failed` or `suspended`; absent until the pods have been ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RayClusterState>,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Desired number of worker pods.
    pub desired_worker_replicas: i32,
    /// Lowest number of worker pods.
    pub min_worker_replicas: i32,
    /// Highest number of worker pods.
    pub max_worker_replicas: i32,
    /// Worker pods that are ready.
    pub ready_worker_replicas: i32,
    /// Worker pods that are ready.
    pub available_worker_replicas: i32,
    /// CPUs that all pods request.
    #[serde(rename = "desiredCPU", skip_serializing_if = "String::is_empty")]
    pub desired_cpu: String,
    /// Memory that all pods request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub desired_memory: String,
    /// GPUs that all pods request.
    #[serde(rename = "desiredGPU", skip_serializing_if = "String::is_empty")]
    pub desired_gpu: String,
    /// When this last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When each state began.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub state_transition_times: BTreeMap<String, Time>,
    /// Ports of the head's Service, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: Map,
    /// Where the head is.
    pub head: HeadInfo,
    /// What has happened to the cluster, by condition type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this is about.
    pub observed_generation: i64,
}

/// Where the head is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeadInfo {
    /// Address of its pod.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// Name of its pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// Address of its Service.
    #[serde(rename = "serviceIP", skip_serializing_if = "String::is_empty")]
    pub service_ip: String,
    /// Name of its Service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_name: String,
}

object!(RayCluster);
managed!(RayCluster);

impl RayClusterSpec {
    /// True if the cluster is suspended.
    pub fn is_suspended(&self) -> bool {
        self.suspend.unwrap_or(false)
    }

    /// The paths below `path` of fields that are set but not supported.
    pub fn unsupported(&self, path: &str) -> Vec<String> {
        let mut paths: Vec<String> = self.other.paths(path).collect();
        let is_stated = |name: &&str| self.other.0.get(*name).is_some_and(|value| !value.is_null());
        let asking = ASKING.into_iter().filter(is_stated);
        paths.extend(asking.map(|name| format!("{path}.{name}")));
        paths.sort();
        paths.dedup();
        paths.extend(self.head_group_spec.other.paths(&format!("{path}.headGroupSpec")));
        for (index, group) in self.worker_group_specs.iter().enumerate() {
            paths.extend(group.other.paths(&format!("{path}.workerGroupSpecs[{index}]")));
        }
        paths
    }
}

impl WorkerGroupSpec {
    /// True if the group is suspended.
    pub fn is_suspended(&self) -> bool {
        self.suspend.unwrap_or(false)
    }

    /// How many pods the group should have: replicas within their limits, times hosts.
    pub fn pods(&self) -> i32 {
        if self.is_suspended() {
            return 0;
        }
        let replicas = self
            .replicas
            .unwrap_or(0)
            .min(self.max_replicas.unwrap_or(i32::MAX));
        replicas.max(self.min_replicas()).saturating_mul(self.hosts())
    }

    /// The minimum of replicas; 0 by default.
    pub fn min_replicas(&self) -> i32 {
        self.min_replicas.unwrap_or(0).max(0)
    }

    /// The number of pods of each replica.
    pub fn hosts(&self) -> i32 {
        self.num_of_hosts.unwrap_or(1).max(1)
    }
}

impl RayClusterStatus {
    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// True if the condition of this type exists and has status `True`.
    pub fn is_true(&self, type_: &str) -> bool {
        self.condition(type_)
            .is_some_and(|condition| condition.status == "True")
    }
}
