//! Border of NRI's messages.

use std::path::PathBuf;

use lockstep_proto::nri::v1alpha1 as wire;
use lockstep_protocol::pods::{BIN_DIR, is_sandboxed};

use super::inject::{Adjustment, Container, PidNamespace, Scratch};
use crate::pods::{self, InPlacePod, Metadata, NotAWorker};
use crate::worker::types::Pod;

/// The kubelet's annotation of each container with the `terminationGracePeriodSeconds` of its pod.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// A pod sandbox, if its pod has workers with agents. An agent in a sandbox with a kernel of its
/// own could not reach this daemon.
///
/// # Errors
/// See [`pods::recognise`].
pub fn pod(pod: &wire::PodSandbox) -> Result<Option<Pod>, NotAWorker> {
    let marked = pods::recognise(&Metadata {
        uid: &pod.uid,
        namespace: &pod.namespace,
        name: &pod.name,
        labels: &pod.labels,
        annotations: &pod.annotations,
    })?;
    Ok(match marked {
        Some(InPlacePod::Supervised(worker)) => Some(worker).filter(|_| !is_sandboxed(&pod.runtime_handler)),
        Some(InPlacePod::Plain(_)) | None => None,
    })
}

/// A container.
#[must_use]
pub fn container(container: wire::Container) -> Container {
    // The runtime makes a namespace if it is listed without a path, and none if it is not listed.
    let own = container.linux.as_ref().is_some_and(|linux| {
        linux
            .namespaces
            .iter()
            .any(|namespace| namespace.r#type == "pid" && namespace.path.is_empty())
    });
    let termination_grace = container.annotations.get(TERMINATION_GRACE);
    Container {
        termination_grace: termination_grace.and_then(|seconds| seconds.parse().ok()),
        id: container.id.into(),
        name: container.name,
        args: container.args,
        mounts: container
            .mounts
            .into_iter()
            .map(|mount| mount.destination)
            .collect(),
        pid_namespace: if own {
            PidNamespace::Own
        } else {
            PidNamespace::Shared
        },
    }
}

/// The agent's directory on the host, if the container has an agent.
#[must_use]
pub fn agent_dir(container: &wire::Container) -> Option<PathBuf> {
    let mut mounts = container.mounts.iter();
    let mount = mounts.find(|mount| mount.destination == BIN_DIR)?;
    Some(PathBuf::from(&mount.source))
}

/// An adjustment.
#[must_use]
pub fn adjustment(adjustment: Adjustment) -> wire::ContainerAdjustment {
    let mounts = adjustment
        .mounts
        .into_iter()
        .map(|(source, destination)| wire::Mount {
            destination: destination.to_owned(),
            r#type: "bind".to_owned(),
            source: source.to_string_lossy().into_owned(),
            options: ["bind", "ro", "nosuid", "nodev", "rprivate"]
                .map(str::to_owned)
                .into(),
        })
        .chain(adjustment.scratch.into_iter().map(scratch))
        .collect();
    wire::ContainerAdjustment {
        args: adjustment.args,
        mounts,
        ..wire::ContainerAdjustment::default()
    }
}

/// A file system in memory. It ends with the container.
fn scratch(scratch: Scratch) -> wire::Mount {
    let mode = if scratch.is_sticky { "1777" } else { "0777" };
    let (mode, size) = (format!("mode={mode}"), format!("size={}k", scratch.kib));
    let inodes = format!("nr_inodes={}", scratch.inodes);
    wire::Mount {
        destination: scratch.place.to_owned(),
        r#type: "tmpfs".to_owned(),
        source: "tmpfs".to_owned(),
        options: ["nosuid", "nodev", "noexec", &mode, &size, &inodes]
            .map(str::to_owned)
            .into(),
    }
}
