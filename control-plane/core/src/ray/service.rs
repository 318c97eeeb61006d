//! The head's Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::ray::RayCluster;

use super::jobset::owner;
use super::start::Role;
use super::{names, pod};

/// Ports that every head has, by the names that KubeRay gives them.
const PORTS: [(&str, i32); 5] = [
    ("gcs-server", 6379),
    ("dashboard", 8265),
    ("client", 10001),
    ("metrics", 8080),
    ("serve", 8000),
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
            selector: Some(pod::selector(cluster.name(), Role::Head).into()),
            ports: Some(ports(cluster)),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The ports that the head's container names, and those that every head has.
fn ports(cluster: &RayCluster) -> Vec<ServicePort> {
    let template = cluster.spec.head_group_spec.template.spec.as_ref();
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
    for (name, port) in PORTS {
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
