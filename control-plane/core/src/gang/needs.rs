//! What a pod needs of a node, and which of its requirements the fit check does not understand.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    self as k8s, Container, NodeSelector, NodeSelectorTerm, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{annotations, labels};

use super::Resources;
use crate::jobset::placement::LONGEST_LABEL;

/// What a pod needs of a node. Pods of one template differ only in `exclusive`, and share the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Its requests, and one of [`Resources::PODS`].
    pub requests: Arc<Resources>,
    /// Labels that the node must have.
    pub node_selector: Arc<BTreeMap<String, String>>,
    /// Required node affinity: one of these terms must match. None: any node will do.
    pub affinity: Option<Arc<Vec<NodeSelectorTerm>>>,
    /// Its tolerations.
    pub tolerations: Arc<Vec<Toleration>>,
    /// Exclusive placement by affinity.
    pub exclusive: Option<Exclusive>,
    /// Requirements that the fit check does not understand, such as `podAntiAffinity`.
    pub unknown: Vec<&'static str>,
}

/// Exclusive placement: all pods of a Job in one domain without other Jobs of the same priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exclusive {
    /// The node label whose values are the domains.
    pub topology: String,
    /// The Job, from the label [`labels::JOB_KEY`].
    pub job_key: String,
    /// From the label [`labels::PRIORITY`], if the pod has been admitted.
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
        let (selector, tolerations) = (spec.node_selector.as_ref(), spec.tolerations.as_ref());
        let selects_much = selector.is_some_and(|labels| labels.len() > MOST);
        let tolerates_much = tolerations.is_some_and(|all| all.len() > MOST);
        let any = || Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        };
        Self {
            requests: requests(spec).into(),
            node_selector: selector
                .filter(|_| !selects_much)
                .cloned()
                .unwrap_or_default()
                .into(),
            affinity: node_affinity
                .filter(|required| !is_long(required))
                .map(|required| required.node_selector_terms.clone().into()),
            tolerations: if tolerates_much {
                vec![any()].into()
            } else {
                tolerations.cloned().unwrap_or_default().into()
            },
            unknown: unknown(spec, exclusive.is_some())
                .into_iter()
                .chain(asks_much(spec).then_some("resources"))
                .chain(selects_much.then_some("nodeSelector"))
                .chain(node_affinity.is_some_and(is_long).then_some("nodeAffinity"))
                .chain(tolerates_much.then_some("tolerations"))
                .chain((in_group(meta, spec) == Some(false)).then_some("schedulingGroup"))
                .collect(),
            exclusive,
        }
    }
}

impl Needs {
    /// Approximate size of its lists in bytes; 0 if it is small.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let labels = self.node_selector.iter();
        let labels = labels.map(|(key, value)| key.len().saturating_add(value.len()));
        let tolerations = self.tolerations.iter();
        let tolerations = tolerations.map(|toleration| length(&toleration.key) + length(&toleration.value));
        let terms = self.affinity.iter().flat_map(|terms| terms.iter());
        let requirements = terms.clone().flat_map(|term| {
            let fields = term.match_fields.iter().flatten();
            term.match_expressions.iter().flatten().chain(fields)
        });
        let requirements = requirements.flat_map(|requirement| {
            let values = requirement.values.iter().flatten().map(String::len);
            [requirement.key.len(), requirement.operator.len()]
                .into_iter()
                .chain(values)
        });
        let bytes = labels
            .chain(tolerations)
            .chain(terms.map(|_| 0))
            .chain(requirements)
            .fold(bytes_of(&self.requests), |sum, text| {
                sum.saturating_add(text).saturating_add(ENTRY)
            });
        if bytes > LITTLE { bytes } else { 0 }
    }

    /// The same without its lists, except requests of resources that every node has. As far as is
    /// known here it may run anywhere.
    #[must_use]
    pub fn in_short(&self) -> Self {
        let mut unknown = self.unknown.clone();
        unknown.push("lists that are too long");
        Self {
            requests: of_every_node(&self.requests).into(),
            exclusive: self.exclusive.clone(),
            unknown,
            ..Self::default()
        }
    }
}

/// Bytes of a list entry besides its text, and the total that counts as 0.
const ENTRY: usize = 128;
const LITTLE: usize = 1024;

/// The most labels, tolerations, resource amounts, and requirements and values of node affinity
/// that are considered: each is checked for each node in each decision. A pod with more may run
/// anywhere, as far as is known here.
const MOST: usize = 1024;
/// The most [bytes](bytes_of) of the resources of a bound pod.
const MOST_TAKEN: usize = 4096;
/// The resources that are considered for a pod with more than [`MOST`] amounts.
const OF_ALL: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// True if required node affinity exceeds the limit. A value that is longer than a label counts as
/// several, since Kubernetes does not limit values.
fn is_long(required: &NodeSelector) -> bool {
    let terms = required.node_selector_terms.iter();
    let requirements =
        terms.flat_map(|term| term.match_expressions.iter().chain(&term.match_fields).flatten());
    let parts = requirements.map(|requirement| {
        let values = requirement.values.iter().flatten();
        1 + values.map(|value| 1 + value.len() / LONGEST_LABEL).sum::<usize>()
    });
    required.node_selector_terms.len() > MOST || parts.sum::<usize>() > MOST
}

/// True if a pod has more resource amounts than the limit.
fn asks_much(spec: &PodSpec) -> bool {
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let resources = containers.map(|container| container.resources.as_ref());
    let resources = resources.chain([spec.resources.as_ref()]).flatten();
    let amounts = resources.flat_map(|resources| [&resources.limits, &resources.requests]);
    let stated = amounts.chain([&spec.overhead]).flatten().map(BTreeMap::len);
    stated.sum::<usize>() > MOST
}

/// True if the pod's group is that of its gang; `None`: it has no group. A group of the Job
/// controller (`WorkloadWithJob`) would wait for the optional workers too.
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
        topology: annotation(annotations::EXCLUSIVE_TOPOLOGY)
            .filter(|topology| topology.len() <= LONGEST_LABEL)?
            .clone(),
        job_key: label(labels::JOB_KEY)?.clone(),
        priority: label(labels::PRIORITY).cloned(),
    })
}

/// The requirements that are not checked here. What exclusive placement adds is checked.
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

/// A pod's resource requests, computed like kube-scheduler: the sum of its regular containers and
/// sidecars, or the largest of its init containers plus the sidecars before it, whichever is
/// higher. Requests of the pod itself override both (KEP-2837), and its overhead is added. For a
/// pod with [too many amounts](asks_much), only the resources that every node has.
#[must_use]
pub(super) fn requests(spec: &PodSpec) -> Resources {
    let read = if asks_much(spec) { few } else { Resources::of };
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of_container(container, read));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut own = of_container(container, read);
        // It adds nothing, and there may be thousands.
        if own.iter().next().is_none() {
            continue;
        }
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
    for (name, amount) in of_pod.map(read).unwrap_or_default().iter() {
        running.set(name, amount);
    }
    running.add(&spec.overhead.as_ref().map(read).unwrap_or_default());
    running.set(Resources::PODS, 1000);
    running
}

/// The requests of a bound pod. If they take more than [`MOST_TAKEN`], only those of [`OF_ALL`]:
/// any tenant may bind pods, and their requests are kept for as long as they exist.
pub(super) fn taken(spec: &PodSpec) -> Resources {
    let all = requests(spec);
    match bytes_of(&all) <= MOST_TAKEN {
        true => all,
        false => of_every_node(&all),
    }
}

/// Approximate size of these amounts in bytes.
pub(super) fn bytes_of(amounts: &Resources) -> usize {
    amounts.iter().map(|(name, _)| name.len() + ENTRY).sum()
}

/// The amounts of resources that every node has.
fn of_every_node(all: &Resources) -> Resources {
    let mut few = Resources::default();
    for name in OF_ALL.into_iter().chain([Resources::PODS]) {
        few.set(name, all.get(name));
    }
    few
}

/// The quantities of [`OF_ALL`] only.
fn few(quantities: &BTreeMap<String, Quantity>) -> Resources {
    let of_all = OF_ALL.iter().filter_map(|name| quantities.get_key_value(*name));
    Resources::of(
        &of_all
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

/// True if an init container runs as long as the pod.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// A container's requests. The API server fills in a missing request from the limit, but a template
/// may not have passed the API server.
fn of_container(container: &Container, read: fn(&BTreeMap<String, Quantity>) -> Resources) -> Resources {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let mut stated = limits.map(read).unwrap_or_default();
    for (name, amount) in requests.map(read).unwrap_or_default().iter() {
        stated.set(name, amount);
    }
    stated
}
