//! The head's Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::ray::{RayCluster, RayClusterSpec};

use super::jobset::owner;
use super::start::Role;
use super::{names, pod};

/// The default type of a Service.
const CLUSTER_IP: &str = "ClusterIP";
/// The address of a headless Service.
const HEADLESS: &str = "None";
/// The ports of every head, with KubeRay's names.
const PORTS: [(&str, i32); 5] = [
    ("gcs-server", 6379),
    ("dashboard", 8265),
    ("client", 10001),
    ("metrics", 8080),
    ("serve", 8000),
];

/// The flags of `ray start` that change these ports.
const FLAGS: [(&str, &str); 3] = [
    ("gcs-server", "port"),
    ("dashboard", "dashboard-port"),
    ("client", "ray-client-server-port"),
];

/// The Service by which workers, submitters and users find the head, ready or not.
pub(crate) fn head(cluster: &RayCluster) -> Service {
    let spec = &cluster.spec;
    let annotations = Some(&spec.head_service_annotations).filter(|annotations| !annotations.is_empty());
    Service {
        metadata: ObjectMeta {
            name: Some(names::head_service(cluster.name())),
            namespace: cluster.metadata.namespace.clone(),
            labels: Some(pod::selector(cluster.name(), Role::Head).into()),
            annotations: annotations.cloned(),
            owner_references: Some(vec![owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: spec.head_group_spec.service_type.clone(),
            // Its name resolves to the address of the head's pod, where every port answers.
            cluster_ip: is_headless(cluster).then(|| HEADLESS.to_owned()),
            selector: Some(pod::selector(cluster.name(), Role::Head).into()),
            ports: Some(ports(&cluster.spec)),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// True if the Service is headless, as KubeRay's is by default.
fn is_headless(cluster: &RayCluster) -> bool {
    let stated = cluster.spec.head_group_spec.service_type.as_deref();
    matches!(stated, None | Some("" | CLUSTER_IP))
}

/// True if the existing Service differs from the one that the cluster asks for. Additional
/// annotations do not count.
pub(crate) fn differs(found: &Service, cluster: &RayCluster) -> bool {
    let wanted = head(cluster);
    let kind = |service: &Service| {
        let spec = service.spec.clone().unwrap_or_default();
        let type_ = spec.type_.filter(|type_| !type_.is_empty());
        let ports = spec.ports.into_iter().flatten();
        let ports: Vec<(Option<String>, i32)> = ports.map(|port| (port.name, port.port)).collect();
        let is_headless = spec.cluster_ip.as_deref() == Some(HEADLESS);
        (type_.unwrap_or_else(|| CLUSTER_IP.to_owned()), is_headless, ports)
    };
    let annotations = found.metadata.annotations.as_ref();
    let mut missing = wanted
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, value)| annotations.and_then(|annotations| annotations.get(*key)) != Some(*value));
    kind(found) != kind(&wanted) || missing.next().is_some()
}

/// The address of the head: its Service's, or its pod's if the Service is headless.
pub(crate) fn address(service: &Service, pod_ip: &str) -> String {
    let own = service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone());
    match own.as_deref() {
        Some(HEADLESS) => pod_ip.to_owned(),
        own => own.unwrap_or_default().to_owned(),
    }
}

/// Port of the head's dashboard, from its Service: that name resolves to the pod's own address.
#[must_use]
pub fn dashboard_port(cluster: &RayClusterSpec) -> u16 {
    let ports = ports(cluster);
    let named = ports
        .iter()
        .find(|port| port.name.as_deref() == Some("dashboard"));
    named.and_then(|port| port.port.try_into().ok()).unwrap_or(8265)
}

/// The ports that the head's container names, and those of every head.
fn ports(cluster: &RayClusterSpec) -> Vec<ServicePort> {
    let template = cluster.head_group_spec.template.spec.as_ref();
    let container = template.and_then(|pod| pod.containers.first());
    let stated = container
        .into_iter()
        .flat_map(|container| container.ports.iter().flatten());
    let mut ports: BTreeMap<String, i32> = BTreeMap::new();
    for port in stated {
        let name = port
            .name
            .clone()
            .unwrap_or_else(|| format!("{}-port", port.container_port));
        ports.insert(name, port.container_port);
    }
    let params = cluster.head_group_spec.ray_start_params.as_ref();
    for (name, port) in PORTS {
        let flag = FLAGS.iter().find(|(named, _)| *named == name);
        let stated = flag.and_then(|(_, flag)| params?.get(*flag)?.parse().ok());
        let port = stated.unwrap_or(port);
        if !ports.contains_key(name) && !ports.values().any(|stated| *stated == port) {
            ports.insert(name.to_owned(), port);
        }
    }
    ports
        .into_iter()
        .map(|(name, port)| ServicePort {
            name: Some(name.clone()),
            port,
            target_port: Some(IntOrString::Int(port)),
            app_protocol: Some(if name.starts_with("gcs") { "grpc" } else { "tcp" }.to_owned()),
            ..ServicePort::default()
        })
        .collect()
}
