//! The node daemons, one row for each node.
//!
//! What is unknown is not shown. Only the platform API knows what daemons find on their nodes and
//! which agents report. Without it, the version of the container runtime implies if NRI is on.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::pods;

mod runtime;

pub(crate) use runtime::{AccessState, RestartLevel, RuntimeAccess};

#[cfg(test)]
mod tests;

/// The container of the daemon in its pod.
const CONTAINER: &str = "node-daemon";

/// A node and its daemon.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) node: String,
    /// True if the node's condition Ready is true.
    pub(crate) node_ready: bool,
    pub(crate) unschedulable: bool,
    /// The daemon's pod and its state; `None` if there is no daemon on this node.
    pub(crate) pod: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) ready: bool,
    /// How often the kubelet has restarted it.
    pub(crate) restarts: i32,
    pub(crate) since: Option<Timestamp>,
    pub(crate) image: Option<String>,
    /// The container runtime, such as containerd://2.3.7.
    pub(crate) runtime: String,
    /// NRI as the version of the runtime implies it. Agents get into containers by NRI.
    pub(crate) nri: Nri,
    /// The daemon's connection to the control plane. This field and all below come from the
    /// platform API.
    pub(crate) connected: Connection,
    /// Version of the connected daemon, and of the node protocol between it and the leader.
    pub(crate) daemon_version: Option<String>,
    pub(crate) protocol: Option<u32>,
    /// The lowest level at which a worker that starts there now can be restarted.
    pub(crate) level: Option<RestartLevel>,
    /// The daemon's access to the container runtime through CRI, and as an NRI plugin.
    pub(crate) cri_health: Option<RuntimeAccess>,
    pub(crate) nri_health: Option<RuntimeAccess>,
    /// Workers on this node, and how many of them report.
    pub(crate) workers: Option<u32>,
    pub(crate) workers_linked: Option<u32>,
}

/// A daemon's connection to the control plane, as answers show it: true, false, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "Option<bool>")]
pub(crate) enum Connection {
    Connected,
    Missing,
    /// The platform API was not reached, or the control plane is too old to say.
    Unknown,
}

impl From<Connection> for Option<bool> {
    fn from(connection: Connection) -> Self {
        match connection {
            Connection::Connected => Some(true),
            Connection::Missing => Some(false),
            Connection::Unknown => None,
        }
    }
}

/// NRI as the version of a node's container runtime implies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Nri {
    /// containerd 2.2 or later.
    OnByDefault,
    /// An older containerd, whose NRI, if it has one, cannot change the arguments of a container.
    TooOld,
    /// Another runtime, or a version that cannot be read.
    Unknown,
}

impl Nri {
    /// From the runtime's name and version.
    pub(crate) fn of(runtime: &str) -> Self {
        let Some(version) = runtime.strip_prefix("containerd://") else {
            return Self::Unknown;
        };
        let mut parts = version.trim_start_matches('v').split('.');
        let mut number = || parts.next()?.parse::<u32>().ok();
        match (number(), number()) {
            (Some(major), Some(minor)) if (major, minor) < (2, 2) => Self::TooOld,
            (Some(_), Some(_)) => Self::OnByDefault,
            _ => Self::Unknown,
        }
    }

    /// In a few words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::OnByDefault => "on by default",
            Self::TooOld => "too old",
            Self::Unknown => "unknown",
        }
    }
}

/// The nodes according to the platform API, if it was reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlatformNodes {
    nodes: Option<BTreeMap<String, PlatformNode>>,
    /// False if the control plane is too old to say which daemons are connected.
    knows_connected: bool,
}

/// A node according to the platform API.
#[derive(Clone, Debug, Default)]
struct PlatformNode {
    /// Set if its daemon is connected.
    node: Option<pb::Node>,
    workers: u32,
    linked: u32,
}

impl PlatformNodes {
    /// From all groups, and the nodes whose daemons are connected. `connected` is `None` if the
    /// control plane is too old to say.
    pub(crate) fn new(groups: &[pb::Group], connected: Option<Vec<pb::Node>>) -> Self {
        let knows_connected = connected.is_some();
        let mut all: BTreeMap<String, PlatformNode> = BTreeMap::new();
        for worker in groups.iter().flat_map(|group| &group.workers) {
            if worker.phase() != pb::WorkerPhase::Done {
                let of = all.entry(worker.node.clone()).or_default();
                of.workers += 1;
                of.linked += u32::from(reports(worker.phase()));
            }
        }
        for node in connected.into_iter().flatten() {
            let of = all.entry(node.name.clone()).or_default();
            of.node = Some(node);
        }
        Self {
            nodes: Some(all),
            knows_connected,
        }
    }

    /// One node; `None` if the platform API was not reached.
    fn of(&self, node: &str) -> Option<PlatformNode> {
        Some(self.nodes.as_ref()?.get(node).cloned().unwrap_or_default())
    }
}

/// True if a worker in this phase reports through its daemon.
fn reports(phase: pb::WorkerPhase) -> bool {
    use pb::WorkerPhase::{Lost, Pending, Unlinked, Unspecified};
    !matches!(phase, Unspecified | Pending | Unlinked | Lost)
}

/// A row for each node, by name.
pub(crate) fn rows(nodes: &[Node], daemons: &[Pod], by_platform: &PlatformNodes) -> Vec<Row> {
    let mut by_node: BTreeMap<&str, &Pod> = BTreeMap::new();
    for pod in daemons {
        let Some(node) = pods::node(pod) else { continue };
        let known = by_node.entry(node).or_insert(pod);
        if pods::freshness(pod) > pods::freshness(known) {
            *known = pod;
        }
    }
    let mut rows: Vec<Row> = nodes
        .iter()
        .map(|node| {
            let name = node.name_any();
            row(node, by_node.get(name.as_str()).copied(), by_platform)
        })
        .collect();
    rows.sort_by(|a, b| a.node.cmp(&b.node));
    rows
}

fn row(node: &Node, pod: Option<&Pod>, by_platform: &PlatformNodes) -> Row {
    let name = node.name_any();
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let runtime = info
        .map(|info| info.container_runtime_version.clone())
        .unwrap_or_default();
    let knows_connected = by_platform.knows_connected;
    let found = by_platform.of(&name);
    let connected = found.as_ref().and_then(|found| found.node.as_ref());
    Row {
        node_ready: is_ready(node),
        unschedulable: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        pod: pod.and_then(|pod| pod.metadata.name.clone()),
        state: pod.map(pods::state),
        ready: pod.is_some_and(pods::is_ready),
        restarts: pod.map_or(0, pods::restarts),
        since: pod.and_then(since),
        image: pod.and_then(image),
        nri: Nri::of(&runtime),
        runtime,
        connected: match connected {
            _ if !knows_connected => Connection::Unknown,
            Some(_) => Connection::Connected,
            None => Connection::Missing,
        },
        daemon_version: connected
            .map(|node| node.daemon_version.clone())
            .filter(|version| !version.is_empty()),
        protocol: connected.map(|node| node.protocol).filter(|version| *version > 0),
        level: knows_connected.then(|| RestartLevel::of(connected)).flatten(),
        cri_health: connected.map(|node| RuntimeAccess::of(node.cri.as_ref())),
        nri_health: connected.map(|node| RuntimeAccess::of(node.nri.as_ref())),
        workers: found.as_ref().map(|found| found.workers),
        workers_linked: found.as_ref().map(|found| found.linked),
        node: name,
    }
}

/// True if the node's condition Ready is true.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn since(pod: &Pod) -> Option<Timestamp> {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let since = started.or(pod.metadata.creation_timestamp.as_ref())?;
    Some(since.0)
}

fn image(pod: &Pod) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    let daemon = containers.iter().find(|container| container.name == CONTAINER);
    daemon.or(containers.first())?.image.clone()
}

/// True if the DaemonSet wants a pod on this node, by its node selector and tolerations. Affinity
/// is ignored.
pub(crate) fn is_wanted(daemons: &DaemonSet, node: &Node) -> bool {
    let template = daemons.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let selector = template.and_then(|spec| spec.node_selector.as_ref());
    let labels = node.labels();
    let selected = selector
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let tolerations = template
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    // The DaemonSet controller adds tolerations for these.
    let always =
        |key: &str| key.starts_with("node.kubernetes.io/") && key != "node.kubernetes.io/network-unavailable";
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let tolerated = taints.unwrap_or_default().iter().all(|taint| {
        taint.effect == "PreferNoSchedule"
            || always(&taint.key)
            || tolerations.iter().any(|toleration| {
                let effect = toleration.effect.as_deref().unwrap_or_default();
                let key = toleration.key.as_deref().unwrap_or_default();
                let exists = toleration.operator.as_deref() == Some("Exists");
                (effect.is_empty() || effect == taint.effect)
                    && ((key.is_empty() && exists)
                        || (key == taint.key && (exists || toleration.value == taint.value)))
            })
    });
    selected && tolerated
}
