//! What keeps workers from having an agent, by pod or by container. For pods it is read from the
//! pod's own spec: a policy or a webhook may have changed it after its template was checked.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use lockstep_protocol::pods::is_sandboxed;

/// What keeps a pod from having agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// `shareProcessNamespace`: signals to "all processes" would reach the other containers.
    SharedProcesses,
    /// `hostPID`: they would reach the host.
    HostProcesses,
    /// A `runtimeClassName` whose pods have a kernel of their own.
    Sandboxed(Box<str>),
}

impl Obstacle {
    /// The first obstacle of a pod.
    #[must_use]
    pub fn of(pod: &PodSpec) -> Option<Self> {
        Self::all(pod).next()
    }

    /// All obstacles of a pod.
    pub(super) fn all(pod: &PodSpec) -> impl Iterator<Item = Self> {
        let shared = (pod.share_process_namespace == Some(true)).then_some(Self::SharedProcesses);
        let host = (pod.host_pid == Some(true)).then_some(Self::HostProcesses);
        let class = pod.runtime_class_name.as_deref();
        let sandboxed = class.filter(|class| is_sandboxed(class));
        let sandboxed = sandboxed.map(|class| Self::Sandboxed(class.into()));
        [shared, host, sandboxed].into_iter().flatten()
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedProcesses => f.write_str("shareProcessNamespace"),
            Self::HostProcesses => f.write_str("hostPID"),
            Self::Sandboxed(class) => write!(f, "runtimeClassName {class}"),
        }
    }
}

/// What keeps a container from having an agent unless `lockstep.dev/supervise` lists it. The
/// kubelet does some things once per container start and would not repeat them when only the
/// process restarts; others count against a worker that waits at the barrier.
pub(super) fn of_container(container: &Container) -> Option<&'static str> {
    if container.liveness_probe.is_some() {
        Some("livenessProbe")
    } else if container.startup_probe.is_some() {
        Some("startupProbe")
    } else if container
        .lifecycle
        .as_ref()
        .is_some_and(|lifecycle| lifecycle.post_start.is_some())
    {
        Some("postStart hook")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
