//! What keeps all workers of a pod from having an agent: it stands in the pod's own spec, which a policy or a webhook may have changed since its template
//! was judged.

use std::fmt;

use k8s_openapi::api::core::v1::PodSpec;

use crate::jobset::pod::PodSummary;

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
    /// The first one.
    #[must_use]
    pub fn of(pod: &PodSpec) -> Option<Self> {
        Self::all(pod).next()
    }

    /// All that there are.
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

/// Whether pods of this RuntimeClass run under a kernel of their own, by the names that these have in the documentation of Kata Containers, gVisor
/// and Firecracker: no socket of the host's can be reached from there, and so an agent would wait for its release without end. Others,
/// such as `nvidia`, say which runtime to use on the node's own kernel. Node daemons read the runtime's handlers in the same way.
fn is_sandboxed(class: &str) -> bool {
    let mut words = class.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "kata" | "gvisor" | "runsc" | "firecracker"))
}

/// Pods of a group that cannot have agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The first Job, by name, that has one.
    pub job: String,
    /// What keeps them from it.
    pub obstacle: Obstacle,
}

impl Changed {
    /// Looks among the pods of a restart attempt of the JobSet.
    pub fn among<'p>(pods: impl IntoIterator<Item = &'p PodSummary>, recreations: i32) -> Option<Self> {
        let pods = pods.into_iter();
        let pods = pods.filter(|pod| pod.recreation == Some(recreations) && pod.job_uid.is_some());
        let changed = pods.filter_map(|pod| Some((pod.job.as_deref()?, pod.index, pod.obstacle.as_ref()?)));
        let (job, _, obstacle) = changed.min_by_key(|(job, index, _)| (*job, *index))?;
        Some(Self {
            job: job.to_owned(),
            obstacle: obstacle.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
