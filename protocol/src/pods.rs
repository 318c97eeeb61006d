//! What the control plane and node daemons agree on about pods that restart in place: how they are
//! marked, which of them no agent can serve, and where a worker's container has its agent.

/// Annotation of pods that restart in place, written by the control plane. The value is
/// [`IN_PLACE_SUPERVISED`] or [`IN_PLACE_PLAIN`].
pub const IN_PLACE: &str = "lockstep.dev/in-place";
/// Value of [`IN_PLACE`]: node daemons inject the agent.
pub const IN_PLACE_SUPERVISED: &str = "supervised";
/// Value of [`IN_PLACE`]: node daemons kill the containers at a restart, and the kubelet restarts
/// them.
pub const IN_PLACE_PLAIN: &str = "plain";
/// On a JobSet: the containers that are workers, or `none`. On pods that restart in place, written
/// by the control plane: the same, always as a list that commas separate.
pub const SUPERVISE: &str = "lockstep.dev/supervise";
/// Annotation of pods, written by the control plane, with the value `true`: the kubelet restarts
/// each worker that is stopped, so a worker that was started without its agent may be stopped.
pub const STOP_WITHOUT_AGENT: &str = "lockstep.dev/stop-without-agent";
/// On a JobSet, or in the Job template of a replicatedJob, which takes precedence: what is started
/// ahead for the next attempt of its workers ([`Standby`]). On pods whose workers have agents,
/// written by the control plane: the same, unless it is nothing.
pub const STANDBY: &str = "lockstep.dev/standby";

/// Label and annotation of Jobs and pods: UID of the JobSet.
pub const JOBSET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
/// Label that the Job controller puts on pods: the name of their Job.
pub const BATCH_JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Label and annotation that the Job controller puts on the pods of Indexed Jobs: their completion
/// index.
pub const BATCH_JOB_COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The labels and annotations of pods that node daemons read.
pub const READ_OF_PODS: [&str; 7] = [
    IN_PLACE,
    SUPERVISE,
    STOP_WITHOUT_AGENT,
    STANDBY,
    JOBSET_UID,
    BATCH_JOB_NAME,
    BATCH_JOB_COMPLETION_INDEX,
];

/// Directory of the agent's binary in a worker's container.
pub const BIN_DIR: &str = "/.lockstep/bin";
/// Path of the agent in a worker's container: the first of its args. It also identifies containers
/// of earlier versions, so it never changes.
pub const AGENT: &str = "/.lockstep/bin/lockstep-pod-agent";
/// Directory of the pod's socket in a worker's container.
pub const RUN_DIR: &str = "/.lockstep/run";
/// Path of the pod's socket in a worker's container.
pub const SOCKET: &str = "/.lockstep/run/agent.sock";
/// Directory of the heartbeat file in a worker's container.
pub const HEARTBEAT_DIR: &str = "/.lockstep/heartbeat";
/// Directory of all of these, at the root of the container.
const ROOT: &str = ".lockstep";

/// What is started ahead, while a worker runs, for its next attempt ([`STANDBY`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standby {
    /// `none`: nothing.
    #[default]
    Nothing,
    /// `python`: the Python interpreters of its command, which wait in a hook.
    Python,
    /// `program`: its command, which parks itself.
    Program,
}

impl Standby {
    /// The value of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Python => "python",
            Self::Program => "program",
        }
    }

    /// What this value of the annotation asks for. `None` if the value is not known.
    #[must_use]
    pub fn from_value(value: &str) -> Option<Self> {
        let known = [Self::Nothing, Self::Python, Self::Program];
        known.into_iter().find(|standby| standby.as_str() == value)
    }
}

/// True if pods of this RuntimeClass, or under this runtime handler, have a kernel of their own,
/// judged by the names in the documentation of Kata Containers, gVisor and Firecracker.
///
/// They cannot reach sockets of the host, so an agent would wait for its release forever. Other
/// classes, such as `nvidia`, select a runtime on the node's own kernel.
#[must_use]
pub fn is_sandboxed(class: &str) -> bool {
    let mut words = class.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "kata" | "gvisor" | "runsc" | "firecracker"))
}

/// True if a mount at this path of a container covers what the agent needs, or lies in it. Paths
/// are read as the runtime reads them, with doubled slashes and `..`.
#[must_use]
pub fn meets_agent(path: &str) -> bool {
    let mut parts = Vec::new();
    let (mut goes_up, mut names_it) = (false, false);
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                goes_up = true;
                parts.pop();
            }
            part => {
                names_it |= part == ROOT;
                parts.push(part);
            }
        }
    }
    // If links of the image are on the way, `..` leads elsewhere.
    parts.first().is_none_or(|first| *first == ROOT) || goes_up && names_it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_shows_that_its_pods_have_a_kernel_of_their_own() {
        for handler in ["kata", "kata-qemu", "runsc", "gvisor"] {
            assert!(is_sandboxed(handler), "{handler}");
        }
        for handler in ["", "runc", "nvidia", "katamaran"] {
            assert!(!is_sandboxed(handler), "{handler}");
        }
    }
}
