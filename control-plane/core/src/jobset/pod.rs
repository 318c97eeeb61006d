//! What the control plane keeps of each pod, and what it derives from that for gangs and agents.
//! There can be very many pods, so it is little.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use lockstep_api::{annotations, labels};

use crate::jobset::in_place::Obstacle;
use crate::jobset::owner::controller_of;
use crate::jobset::upstream_agent::AgentPod;

#[cfg(test)]
mod tests;

/// A pod of a JobSet, as far as restarts are concerned. Its placement is read by
/// [`crate::jobset::placement::Member`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSummary {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// UID of the JobSet.
    pub jobset_uid: Option<String>,
    /// The restart attempt of the JobSet that the pod was created for.
    pub restart_attempt: Option<i32>,
    /// Name of its Job.
    pub job: Option<String>,
    /// UID of the Job that controls it. A pod that only has the labels of a Job has none.
    pub job_uid: Option<String>,
    /// Its completion index.
    pub index: Option<u32>,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// True if its containers run.
    pub running: bool,
    /// True if Kubernetes has marked it as not ready because its node no longer reports.
    pub node_lost: bool,
    /// True if it is being deleted.
    pub deleting: bool,
    /// True if it belongs to a gang.
    pub in_gang: bool,
    /// What keeps it from having agents. It is read from the pod itself, since a policy or a
    /// webhook may have changed it.
    pub obstacle: Option<Obstacle>,
    /// How it ended, and what concerns upstream's in-place restart agent.
    pub agent: AgentPod,
}

impl PodSummary {
    /// Reads a pod. Malformed numbers are left out.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let labels = pod.metadata.labels.as_ref();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            jobset_uid: label(labels, labels::JOBSET_UID).map(str::to_owned),
            restart_attempt: label(labels, labels::RESTART_ATTEMPT).and_then(|attempt| attempt.parse().ok()),
            job: label(labels, labels::BATCH_JOB_NAME).map(str::to_owned),
            job_uid: controller_of(&pod.metadata)
                .filter(|owner| {
                    owner.kind == "Job" && label(labels, labels::BATCH_JOB_NAME) == Some(owner.name.as_str())
                })
                .map(|owner| owner.uid.clone()),
            index: label(labels, labels::BATCH_JOB_COMPLETION_INDEX).and_then(|index| index.parse().ok()),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            running: phase == Some("Running"),
            node_lost: pod.status.as_ref().is_some_and(node_lost),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            in_gang: pod
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| annotations.contains_key(annotations::GANG)),
            obstacle: pod.spec.as_ref().and_then(Obstacle::of),
            agent: AgentPod::of(pod),
        }
    }

    /// True if the pod has ended, successfully or not.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.agent.failed || self.agent.succeeded
    }
}

/// A pod of a JobSet with a gang, as far as the reconciler is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangPod {
    /// Name of its Job.
    pub job: String,
    /// True if it runs.
    pub running: bool,
    /// True if it is bound to a node and has not ended.
    pub bound: bool,
    /// True if it has succeeded.
    pub succeeded: bool,
    /// True if it has failed.
    pub failed: bool,
    /// Set while it is being deleted and still holds its node.
    pub leaving: Option<Leaving>,
}

impl GangPod {
    /// `None`: the pod belongs to no Job of this restart attempt.
    #[must_use]
    pub fn of(pod: &PodSummary, restart_attempt: i32) -> Option<Self> {
        let job = pod.job.clone()?;
        (pod.restart_attempt == Some(restart_attempt)).then(|| Self {
            job,
            running: pod.running,
            bound: pod.node.is_some() && !pod.is_terminal(),
            succeeded: pod.agent.succeeded,
            failed: pod.agent.failed,
            leaving: Leaving::of_summary(pod),
        })
    }
}

/// A pod that is being deleted and is not gone yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaving {
    /// Its name.
    pub pod: String,
    /// The node that it is bound to.
    pub node: String,
    /// True if that node no longer reports.
    pub is_lost: bool,
}

impl Leaving {
    /// `None`: the pod is not being deleted, or holds no node.
    fn of_summary(pod: &PodSummary) -> Option<Self> {
        let node = pod.node.clone().filter(|_| pod.deleting && !pod.is_terminal())?;
        Some(Self {
            pod: pod.name.clone(),
            node,
            is_lost: pod.node_lost,
        })
    }
}

/// Pods of a group that cannot have agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The first Job, by name, that has one.
    pub job: String,
    /// What keeps them from having agents.
    pub obstacle: Obstacle,
}

impl Changed {
    /// Looks for them among the pods of a restart attempt; `None`: there are none.
    pub fn among<'p>(pods: impl IntoIterator<Item = &'p PodSummary>, restart_attempt: i32) -> Option<Self> {
        let pods = pods.into_iter();
        let pods = pods.filter(|pod| pod.restart_attempt == Some(restart_attempt) && pod.job_uid.is_some());
        let changed = pods.filter_map(|pod| Some((pod.job.as_deref()?, pod.index, pod.obstacle.as_ref()?)));
        let (job, _, obstacle) = changed.min_by_key(|(job, index, _)| (*job, *index))?;
        Some(Self {
            job: job.to_owned(),
            obstacle: obstacle.clone(),
        })
    }
}

/// True if the node controller has marked the pod. It sets `Ready` to False and nothing else; the
/// kubelet also gives a reason, and sets `ContainersReady`.
pub(crate) fn node_lost(status: &PodStatus) -> bool {
    let condition = |type_: &str, status_: &str| {
        let conditions = status.conditions.iter().flatten();
        let mut conditions = conditions.filter(|condition| condition.type_ == type_);
        conditions.find(|condition| condition.status == status_)
    };
    let by_nobody = condition("Ready", "False")
        .is_some_and(|ready| ready.reason.as_deref().unwrap_or_default().is_empty());
    by_nobody && condition("ContainersReady", "True").is_some()
        || status.reason.as_deref() == Some("NodeLost")
}

fn label<'a>(labels: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    labels?.get(key).map(String::as_str)
}
