//! The pod template of a Ray node: the user's, with the additions that KubeRay makes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector,
    PodTemplateSpec, Probe, TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::ray::{RayCluster, keys};

use super::names;
use super::start::{self, DASHBOARD_PORT, GCS_PORT, METRICS_PORT, Node, Role};

const SHARED_MEMORY: (&str, &str) = ("shared-mem", "/dev/shm");
/// Name of the metrics port.
const METRICS: &str = "metrics";

/// The template of one group's pods.
pub(crate) fn template(
    cluster: &RayCluster,
    group: &str,
    node: Node<'_>,
    stated: &PodTemplateSpec,
) -> PodTemplateSpec {
    let mut template = stated.clone();
    label(cluster, group, node, &mut template);
    let keeps_command = keeps_command(cluster, stated);
    let Some(pod) = template.spec.as_mut() else {
        return template;
    };
    // Jobs allow no other policies. A node that fails is started again. One that exits 0 has ended
    // for good.
    if pod.restart_policy.as_deref() != Some("Never") {
        pod.restart_policy = Some("OnFailure".to_owned());
    }
    let host = format!("{}.{}.svc", names::head_service(cluster.name()), cluster.ns());
    for container in pod.init_containers.iter_mut().flatten() {
        env(container, "FQ_RAY_IP", &host);
        env(container, "RAY_IP", &names::head_service(cluster.name()));
    }
    let Some(container) = pod.containers.first_mut() else {
        return template;
    };
    let port = gcs_port(cluster);
    let command = node.command(container, &format!("{host}:{port}"));
    environment(cluster, group, node.role, (&host, &port), container);
    // Only the command itself: a shell that expands it without `eval` passes a `;` as an argument.
    env(container, "KUBERAY_GEN_RAY_START_CMD", &command);
    let stated: Vec<&str> = [&container.command, &container.args]
        .into_iter()
        .flatten()
        .flatten()
        .map(String::as_str)
        .collect();
    let before = stated.join(" ");
    if !keeps_command && !start::starts_ray(&before) {
        container.command = Some(["/bin/bash", "-c", "--"].map(str::to_owned).into());
        container.args = Some(vec![start::arguments(node.role, &before, &command)]);
    }
    if container.readiness_probe.is_none() {
        container.readiness_probe = Some(readiness(node));
    }
    expose_metrics(container);
    if node.param("plasma-directory").is_none() && share_memory(container) {
        let size_limit = memory(container);
        let volumes = pod.volumes.get_or_insert_default();
        if !volumes.iter().any(|volume| volume.name == SHARED_MEMORY.0) {
            volumes.push(Volume {
                name: SHARED_MEMORY.0.to_owned(),
                empty_dir: Some(EmptyDirVolumeSource {
                    medium: Some("Memory".to_owned()),
                    size_limit,
                }),
                ..Volume::default()
            });
        }
    }
    template
}

/// True if the container keeps its own command, because the cluster or the pod template says so.
fn keeps_command(cluster: &RayCluster, stated: &PodTemplateSpec) -> bool {
    let of_pods = stated
        .metadata
        .as_ref()
        .and_then(|meta| meta.annotations.as_ref());
    let of_pods = of_pods.and_then(|annotations| annotations.get(keys::OVERWRITE_CONTAINER_COMMAND));
    let said = [
        cluster.annotation(keys::OVERWRITE_CONTAINER_COMMAND),
        of_pods.map(String::as_str),
    ];
    said.into_iter()
        .flatten()
        .any(|value| value.eq_ignore_ascii_case("true"))
}

/// Port of the head's control store (GCS).
pub(crate) fn gcs_port(cluster: &RayCluster) -> String {
    let params = cluster.spec.head_group_spec.ray_start_params.as_ref();
    let port = params.and_then(|params| params.get("port"));
    port.cloned().unwrap_or_else(|| GCS_PORT.to_owned())
}

/// The labels that select the pods of a role.
pub(crate) fn selector(cluster: &str, role: Role) -> [(String, String); 3] {
    let node_type = node_type(role);
    [
        (keys::CLUSTER, cluster.to_owned()),
        (keys::NODE_TYPE, node_type.to_owned()),
        (keys::IDENTIFIER, format!("{cluster}-{node_type}")),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

fn node_type(role: Role) -> &'static str {
    match role {
        Role::Head => keys::HEAD,
        Role::Worker => keys::WORKER,
    }
}

fn label(cluster: &RayCluster, group: &str, node: Node<'_>, template: &mut PodTemplateSpec) {
    let meta = template.metadata.get_or_insert_default();
    // The Job controller names its pods.
    meta.name = None;
    meta.namespace = None;
    let labels = meta.labels.get_or_insert_default();
    labels.extend(node.labels.clone());
    labels.extend(selector(cluster.name(), node.role));
    labels.insert(keys::GROUP.to_owned(), group.to_owned());
    labels.insert(keys::IS_RAY_NODE.to_owned(), "yes".to_owned());
}

fn environment(
    cluster: &RayCluster,
    group: &str,
    role: Role,
    (host, port): (&str, &str),
    container: &mut Container,
) {
    let local = "127.0.0.1";
    let head = if role == Role::Head { local } else { host };
    if role == Role::Worker {
        env(container, "FQ_RAY_IP", host);
        env(container, "RAY_IP", &names::head_service(cluster.name()));
    } else {
        env(container, "RAY_IP", local);
    }
    env(container, "RAY_PORT", port);
    env(container, "RAY_ADDRESS", &format!("{head}:{port}"));
    env(container, "RAY_CLUSTER_NAME", cluster.name());
    env(container, "RAY_CLUSTER_NAMESPACE", cluster.ns());
    env(container, "RAY_NODE_TYPE_NAME", group);
    if !has_env(container, "RAY_CLOUD_INSTANCE_ID") {
        container.env.get_or_insert_default().push(EnvVar {
            name: "RAY_CLOUD_INSTANCE_ID".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.name".to_owned(),
                    api_version: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        });
    }
}

fn has_env(container: &Container, name: &str) -> bool {
    container
        .env
        .iter()
        .flatten()
        .any(|variable| variable.name == name)
}

/// Sets a variable that the user has not set.
pub(crate) fn env(container: &mut Container, name: &str, value: &str) {
    if !has_env(container, name) {
        container.env.get_or_insert_default().push(EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            ..EnvVar::default()
        });
    }
}

/// The head is ready when its control store answers, a worker when its raylet does. There are no
/// liveness probes: they would end the container, but a process that dies is restarted inside it.
fn readiness(node: Node<'_>) -> Probe {
    let http = |path: &str, port: &str| HTTPGetAction {
        path: Some(path.to_owned()),
        port: IntOrString::Int(port.parse().unwrap_or_default()),
        ..HTTPGetAction::default()
    };
    let mut probe = Probe {
        initial_delay_seconds: Some(2),
        period_seconds: Some(2),
        timeout_seconds: Some(2),
        failure_threshold: Some(10),
        ..Probe::default()
    };
    let has_dashboard = node.param("include-dashboard") != Some("false");
    match node.role {
        Role::Head if has_dashboard => {
            let port = node.param("dashboard-port").unwrap_or(DASHBOARD_PORT);
            probe.http_get = Some(http("/api/gcs_healthz", port));
        }
        Role::Head => {
            let port = node.param("port").unwrap_or(GCS_PORT);
            probe.tcp_socket = Some(TCPSocketAction {
                port: IntOrString::Int(port.parse().unwrap_or_default()),
                host: None,
            });
        }
        Role::Worker => probe.http_get = Some(http("/api/local_raylet_healthz", node.agent_port())),
    }
    probe
}

/// Adds the metrics port, by the name that PodMonitors select.
fn expose_metrics(container: &mut Container) {
    let ports = container.ports.get_or_insert_default();
    let is_known = |port: &ContainerPort| {
        port.name.as_deref() == Some(METRICS) || METRICS_PORT.parse() == Ok(port.container_port)
    };
    if let Ok(container_port) = METRICS_PORT.parse()
        && !ports.iter().any(is_known)
    {
        ports.push(ContainerPort {
            name: Some(METRICS.to_owned()),
            container_port,
            ..ContainerPort::default()
        });
    }
}

/// The memory of a container, which includes shared memory: its limit, else its request.
fn memory(container: &Container) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    let of = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref()?.get("memory").cloned();
    of(&resources.limits).or_else(|| of(&resources.requests))
}

/// Mounts shared memory for Ray's object store: without it a container has 64 MiB. Returns true if
/// the pod needs the volume.
fn share_memory(container: &mut Container) -> bool {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|mount| mount.mount_path == SHARED_MEMORY.1) {
        return false;
    }
    mounts.push(VolumeMount {
        name: SHARED_MEMORY.0.to_owned(),
        mount_path: SHARED_MEMORY.1.to_owned(),
        ..VolumeMount::default()
    });
    true
}
