//! The agent in a pod template, for nodes whose container runtime cannot put it into containers (no
//! NRI).
//!
//! An init container copies the agent into a volume of the pod, and the agent runs the command of
//! each worker. The node daemon recognizes such a container by its first argument, and adds no
//! second agent.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, HostPathVolumeSource,
    ObjectFieldSelector, PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_protocol::pods::{AGENT, BIN_DIR, HEARTBEAT_DIR, RUN_DIR, SOCKET, meets_agent};

/// How agents get into the containers of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Agents {
    /// The node daemons add them (NRI).
    #[default]
    ByNode,
    /// Pod templates bring them, from this image: that of the node daemon, which has the agent at
    /// `/lockstep-pod-agent`.
    ByTemplate(String),
}

/// Path of the agent in its image.
const IN_IMAGE: &str = "/lockstep-pod-agent";
/// Name of the init container, and of the volume with the agent.
const NAME: &str = "lockstep-agent";
/// Name of the volume with the pods' sockets.
const SOCKETS: &str = "lockstep-sockets";
/// The pods' sockets on the node, in a directory for each pod's UID.
const SOCKETS_ON_NODE: &str = "/run/lockstep/pods";
/// Name of the volume with the workers' heartbeat files. Each worker of a pod has its own file.
const HEARTBEATS: &str = "lockstep-heartbeats";
/// Kubernetes' default for `terminationGracePeriodSeconds`.
const TERMINATION_GRACE: i64 = 30;
/// Environment variable of workers with the UID of their pod.
const POD_UID: &str = "LOCKSTEP_POD_UID";
/// A user that is not root, whatever the image says. The agent runs as any user.
const USER: i64 = 65_532;

/// What keeps a container from having its agent by template. Without a command it runs what its
/// image says, which is not known here.
pub(super) fn obstacle(container: &Container) -> Option<&'static str> {
    let stated = container
        .command
        .as_ref()
        .is_some_and(|command| !command.is_empty());
    (!stated).then_some("no command for the agent to run")
}

/// The path at which a container mounts something of its own over the agent, or beside it. Node
/// daemons add no agent to such a container: the mounted file could be started in its place.
pub(super) fn taken(container: &Container) -> Option<&str> {
    let mounts = container.volume_mounts.iter().flatten();
    let mut paths = mounts.map(|mount| mount.mount_path.as_str());
    paths.find(|path| meets_agent(path))
}

/// Has the agent run the commands of these containers.
pub(crate) fn inject(pod: &mut PodSpec, workers: &[String], image: &str) {
    let volumes = pod.volumes.get_or_insert_default();
    volumes.push(Volume {
        name: NAME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: SOCKETS.to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: SOCKETS_ON_NODE.to_owned(),
            type_: Some("DirectoryOrCreate".to_owned()),
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: HEARTBEATS.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    let grace = pod.termination_grace_period_seconds.unwrap_or(TERMINATION_GRACE);
    for container in &mut pod.containers {
        if workers.contains(&container.name) {
            put_in_front(container, grace);
        }
    }
    let copier = copier(image, &pod.containers);
    pod.init_containers.get_or_insert_default().insert(0, copier);
}

/// Has the agent run the command of a worker, which has `grace` seconds to terminate.
fn put_in_front(container: &mut Container, grace: i64) {
    let Some(command) = &mut container.command else {
        return;
    };
    let agent = [
        AGENT,
        "--socket",
        SOCKET,
        "--container",
        &container.name,
        "--heartbeat",
        &format!("{HEARTBEAT_DIR}/{}", container.name),
        "--termination-grace-ms",
        &grace.saturating_mul(1000).to_string(),
        "--",
    ]
    .map(str::to_owned);
    command.splice(0..0, agent);
    container.env.get_or_insert_default().push(EnvVar {
        name: POD_UID.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "metadata.uid".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
    });
    let mounts = container.volume_mounts.get_or_insert_default();
    mounts.push(VolumeMount {
        name: NAME.to_owned(),
        mount_path: BIN_DIR.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    mounts.push(VolumeMount {
        name: HEARTBEATS.to_owned(),
        mount_path: HEARTBEAT_DIR.to_owned(),
        ..VolumeMount::default()
    });
    // Each pod sees only its own socket.
    mounts.push(VolumeMount {
        name: SOCKETS.to_owned(),
        mount_path: RUN_DIR.to_owned(),
        read_only: Some(true),
        sub_path_expr: Some(format!("$({POD_UID})")),
        ..VolumeMount::default()
    });
}

/// The init container. It needs nothing that a restricted namespace refuses.
fn copier(image: &str, containers: &[Container]) -> Container {
    // A pod without resources keeps its quality of service. One that states resources may have to
    // state them for each container.
    let stated = containers.iter().any(|container| {
        let resources = container.resources.as_ref();
        resources.is_some_and(|resources| resources.limits.is_some() || resources.requests.is_some())
    });
    let resources = stated.then(|| {
        let amounts = [("cpu", "50m"), ("memory", "32Mi")];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
        ResourceRequirements {
            limits: Some(amounts.clone().into()),
            requests: Some(amounts.into()),
            ..ResourceRequirements::default()
        }
    });
    Container {
        name: NAME.to_owned(),
        image: Some(image.to_owned()),
        command: Some([IN_IMAGE, "--copy-to", BIN_DIR].map(str::to_owned).into()),
        resources,
        security_context: Some(SecurityContext {
            run_as_user: Some(USER),
            run_as_non_root: Some(true),
            read_only_root_filesystem: Some(true),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: NAME.to_owned(),
            mount_path: BIN_DIR.to_owned(),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests;
