//! What the reconciler goes by in the pods of a JobSet with a gang.

use crate::jobset::pod::PodSummary;

/// A pod of a JobSet with a gang, as the reconciler looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangPod {
    /// Name of its Job.
    pub job: String,
    /// True if it runs.
    pub running: bool,
    /// True if it is bound to a node and has not ended.
    pub bound: bool,
    /// True if it has ended well.
    pub succeeded: bool,
    /// True if it has ended badly.
    pub failed: bool,
    /// Where it is on its way out, and holds its node still.
    pub leaving: Option<Leaving>,
}

impl GangPod {
    /// Reads what is kept of a pod; `None`: it belongs to no Job of this restart attempt.
    #[must_use]
    pub fn of(pod: &PodSummary, restart_attempt: i32) -> Option<Self> {
        let job = pod.job.clone()?;
        (pod.recreation == Some(restart_attempt)).then(|| Self {
            job,
            running: pod.running,
            bound: pod.node.is_some() && !pod.is_terminal(),
            succeeded: pod.agent.succeeded,
            failed: pod.agent.failed,
            leaving: Leaving::of_summary(pod),
        })
    }
}

/// A pod that is being deleted, and has not gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaving {
    /// Its name.
    pub pod: String,
    /// The node that it is bound to.
    pub node: String,
    /// True if that node does not report any more.
    pub is_lost: bool,
}

impl Leaving {
    /// `None`: the pod is not on its way out, or holds no node.
    fn of_summary(pod: &PodSummary) -> Option<Self> {
        let node = pod.node.clone().filter(|_| pod.deleting && !pod.is_terminal())?;
        Some(Self {
            pod: pod.name.clone(),
            node,
            is_lost: pod.node_lost,
        })
    }
}
