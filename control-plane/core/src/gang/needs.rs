//! What a pod needs of a node, and what it asks for beyond what is understood here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    self as k8s, Container, NodeSelector, NodeSelectorTerm, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{annotations, labels};

use super::Resources;

/// What a pod needs of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// What it asks for, and one of [`Resources::PODS`].
    pub requests: Resources,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity: one of these terms must match. None: any node will do.
    pub affinity: Option<Vec<NodeSelectorTerm>>,
    /// What it puts up with.
    pub tolerations: Vec<Toleration>,
    /// Exclusive placement by affinity.
    pub exclusive: Option<Exclusive>,
    /// What the fit check knows nothing about, such as `podAntiAffinity`.
    pub unknown: Vec<&'static str>,
}

/// Exclusive placement: all pods of a Job in one domain, where no other Job of the same priority is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exclusive {
    /// The node label whose values are the domains.
    pub topology: String,
    /// The Job, by [`labels::JOB_KEY`].
    pub job_key: String,
    /// By [`labels::PRIORITY`], where the pod has been admitted.
    pub priority: Option<String>,
}

impl Needs {
    /// Reads a pod, or the template of one.
    #[must_use]
    pub fn of(meta: &ObjectMeta, spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref();
        let node_affinity = affinity
            .and_then(|affinity| affinity.node_affinity.as_ref())
            .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        let exclusive = exclusive(meta);
        let tolerates_much = spec.tolerations.as_ref().is_some_and(|all| all.len() > MOST);
        Self {
            requests: requests(spec),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: node_affinity
                .filter(|required| !is_long(required))
                .map(|required| required.node_selector_terms.clone()),
            tolerations: spec
                .tolerations
                .clone()
                .filter(|all| all.len() <= MOST)
                .unwrap_or_else(|| {
                    let any = Toleration {
                        operator: Some("Exists".to_owned()),
                        ..Toleration::default()
                    };
                    tolerates_much.then_some(any).into_iter().collect()
                }),
            unknown: unknown(spec, exclusive.is_some())
                .into_iter()
                .chain(node_affinity.is_some_and(is_long).then_some("nodeAffinity"))
                .chain(tolerates_much.then_some("tolerations"))
                .chain((in_group(meta, spec) == Some(false)).then_some("schedulingGroup"))
                .collect(),
            exclusive,
        }
    }
}

/// The most tolerations, and requirements and values of node affinity, that are reckoned with: each is looked at for each node, at each decision. A pod with more
/// may go anywhere, as far as is known here.
const MOST: usize = 1024;

fn is_long(required: &NodeSelector) -> bool {
    let terms = required.node_selector_terms.iter();
    let requirements =
        terms.flat_map(|term| term.match_expressions.iter().chain(&term.match_fields).flatten());
    let parts = requirements.map(|requirement| 1 + requirement.values.as_ref().map_or(0, Vec::len));
    required.node_selector_terms.len() > MOST || parts.sum::<usize>() > MOST
}

/// Whether the group that the pod is in is its gang's; `None`: it is in none. One of the Job controller's (`WorkloadWithJob`) waits for the extras too.
pub(super) fn in_group(meta: &ObjectMeta, spec: &PodSpec) -> Option<bool> {
    let group = spec.scheduling_group.as_ref()?.pod_group_name.as_ref()?;
    let annotations = meta.annotations.as_ref();
    let own = annotations.and_then(|annotations| annotations.get(annotations::GANG_POD_GROUP));
    Some(Some(group) == own)
}

fn exclusive(meta: &ObjectMeta) -> Option<Exclusive> {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
    let label = |key: &str| meta.labels.as_ref()?.get(key);
    if annotation(annotations::NODE_SELECTOR_STRATEGY).is_some() {
        return None;
    }
    Some(Exclusive {
        topology: annotation(annotations::EXCLUSIVE_TOPOLOGY)?.clone(),
        job_key: label(labels::JOB_KEY)?.clone(),
        priority: label(labels::PRIORITY).cloned(),
    })
}

/// Everything that keeps a node from taking a pod and that is not looked at here. What exclusive placement adds is.
fn unknown(spec: &PodSpec, exclusive: bool) -> Vec<&'static str> {
    let mut found = Vec::new();
    let affinity = spec.affinity.as_ref();
    let attracts = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let repels = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let ours = |terms: Option<&Vec<k8s::PodAffinityTerm>>| {
        terms.into_iter().flatten().all(|term| {
            let selector = term.label_selector.as_ref();
            let mut keys = selector
                .into_iter()
                .flat_map(|selector| selector.match_expressions.iter().flatten());
            exclusive && keys.any(|requirement| requirement.key == labels::JOB_KEY)
        })
    };
    if !ours(attracts.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    })) {
        found.push("podAffinity");
    }
    if !ours(repels.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    })) {
        found.push("podAntiAffinity");
    }
    let mut spread = spec.topology_spread_constraints.iter().flatten();
    if spread.any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule") {
        found.push("topologySpreadConstraints");
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        found.push("resourceClaims");
    }
    let mut volumes = spec.volumes.iter().flatten();
    if volumes.any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()) {
        found.push("persistentVolumeClaim");
    }
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|one| is_sidecar(one));
    let running = spec.containers.iter().chain(sidecars);
    let mut ports = running.flat_map(|container| container.ports.iter().flatten());
    if ports.any(|port| port.host_port.is_some_and(|port| port != 0)) {
        found.push("hostPort");
    }
    let other = spec.scheduler_name.as_deref();
    if other.is_some_and(|name| !name.is_empty() && name != "default-scheduler") {
        found.push("schedulerName");
    }
    found
}

/// What a pod asks of its node, as kube-scheduler reckons it: its regular containers and sidecars together, or the largest of its init
/// containers with the sidecars before it, whichever is more; the pod's own statement goes before both (KEP-2837); and its overhead.
#[must_use]
pub(super) fn requests(spec: &PodSpec) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of_container(container));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut own = of_container(container);
        if is_sidecar(container) {
            sidecars.add(&own);
            starting.raise(&sidecars);
        } else {
            own.add(&sidecars);
            starting.raise(&own);
        }
    }
    running.add(&sidecars);
    running.raise(&starting);
    let of_pod = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    for (name, amount) in of_pod.map(Resources::of).unwrap_or_default().iter() {
        running.set(name, amount);
    }
    running.add(&spec.overhead.as_ref().map(Resources::of).unwrap_or_default());
    running.set(Resources::PODS, 1000);
    running
}

/// Whether an init container runs for as long as the pod does.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What a container requests. Where only a limit is stated the API server requests as much; a template may not have been there.
fn of_container(container: &Container) -> Resources {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let mut stated = limits.map(Resources::of).unwrap_or_default();
    for (name, amount) in requests.map(Resources::of).unwrap_or_default().iter() {
        stated.set(name, amount);
    }
    stated
}
