//! The parts of nodes and pods that scheduling depends on: capacity, what pods use, and what they
//! need. Parsing skips images, environments and commands, which are most of the text. Even a volume
//! of 30 bytes would take 3 kB in memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, EphemeralVolumeSource, Node, NodeSpec, NodeStatus,
    PersistentVolumeClaimVolumeSource, Pod, PodCondition, PodResourceClaim, PodSchedulingGate,
    PodSchedulingGroup, PodSpec, PodStatus, ResourceRequirements, Taint, Toleration,
    TopologySpreadConstraint, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::k8s::watch::cache_entry::same_kind_as;
use crate::k8s::watch::lean::Meta;

#[cfg(test)]
mod tests;

/// A pod with only the fields that scheduling depends on.
#[derive(Clone, Debug)]
pub(super) struct SeenPod(pub(super) Pod);

/// A node with only the fields that scheduling depends on.
#[derive(Clone, Debug)]
pub(super) struct SeenNode(pub(super) Node);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Body {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    tolerations: Option<Vec<Toleration>>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
    scheduling_group: Option<PodSchedulingGroup>,
    scheduler_name: Option<String>,
    priority: Option<i32>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    containers: Vec<SeenContainer>,
    init_containers: Option<Vec<SeenContainer>>,
    volumes: Option<Vec<SeenVolume>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SeenContainer {
    restart_policy: Option<String>,
    resources: Option<ResourceRequirements>,
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SeenVolume {
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    reason: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

impl From<SeenContainer> for Container {
    fn from(seen: SeenContainer) -> Self {
        Self {
            restart_policy: seen.restart_policy,
            resources: seen.resources,
            ports: seen.ports,
            ..Self::default()
        }
    }
}

impl SeenContainer {
    /// True if it keeps its pod off some nodes.
    fn needs_something(&self) -> bool {
        let resources = self.resources.iter();
        let mut amounts = resources.flat_map(|resources| [&resources.limits, &resources.requests]);
        amounts.any(|amounts| amounts.as_ref().is_some_and(|amounts| !amounts.is_empty()))
            || self.ports.as_ref().is_some_and(|ports| !ports.is_empty())
    }
}

impl SeenVolume {
    /// True if it keeps its pod off some nodes.
    fn needs_something(&self) -> bool {
        self.persistent_volume_claim.is_some() || self.ephemeral.is_some()
    }
}

impl From<SeenVolume> for Volume {
    fn from(seen: SeenVolume) -> Self {
        Self {
            persistent_volume_claim: seen.persistent_volume_claim,
            ephemeral: seen.ephemeral.map(|IgnoredAny| EphemeralVolumeSource::default()),
            ..Self::default()
        }
    }
}

fn containers(seen: Vec<SeenContainer>) -> Vec<Container> {
    let seen = seen.into_iter().filter(SeenContainer::needs_something);
    seen.map(Container::from).collect()
}

/// One volume that keeps the pod off some nodes, if there is any.
fn volumes(seen: Vec<SeenVolume>) -> Vec<Volume> {
    let mut seen = seen.into_iter().filter(SeenVolume::needs_something);
    seen.next().map(Volume::from).into_iter().collect()
}

impl From<Spec> for PodSpec {
    fn from(seen: Spec) -> Self {
        Self {
            node_name: seen.node_name,
            node_selector: seen.node_selector,
            affinity: seen.affinity,
            tolerations: seen.tolerations,
            scheduling_gates: seen.scheduling_gates,
            scheduling_group: seen.scheduling_group,
            scheduler_name: seen.scheduler_name,
            priority: seen.priority,
            topology_spread_constraints: seen.topology_spread_constraints,
            resource_claims: seen.resource_claims,
            resources: seen.resources,
            overhead: seen.overhead,
            containers: containers(seen.containers),
            init_containers: seen.init_containers.map(containers),
            volumes: seen.volumes.map(volumes),
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for SeenPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Body {
            metadata,
            spec,
            status,
        } = Body::deserialize(deserializer)?;
        Ok(Self(Pod {
            metadata: metadata.into(),
            spec: Some(spec.into()),
            status: Some(PodStatus {
                phase: status.phase,
                reason: status.reason,
                conditions: status.conditions,
                ..PodStatus::default()
            }),
        }))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeBody {
    metadata: Meta,
    spec: SeenNodeSpec,
    status: SeenNodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenNodeSpec {
    taints: Option<Vec<Taint>>,
    unschedulable: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenNodeStatus {
    allocatable: Option<BTreeMap<String, Quantity>>,
}

impl<'de> Deserialize<'de> for SeenNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let NodeBody {
            metadata,
            spec,
            status,
        } = NodeBody::deserialize(deserializer)?;
        Ok(Self(Node {
            metadata: metadata.into(),
            spec: Some(NodeSpec {
                taints: spec.taints,
                unschedulable: spec.unschedulable,
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                allocatable: status.allocatable,
                ..NodeStatus::default()
            }),
        }))
    }
}

/// Gives a type the API kind that it is read from.
macro_rules! read_from {
    ($seen:ty, $kind:ty, $scope:ty) => {
        impl Resource for $seen {
            type DynamicType = ();
            type Scope = $scope;

            same_kind_as!($kind);

            fn meta(&self) -> &ObjectMeta {
                &self.0.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.0.metadata
            }
        }
    };
}

read_from!(SeenPod, Pod, NamespaceResourceScope);
read_from!(SeenNode, Node, ClusterResourceScope);
