//! What the control plane sees of one JobSet when it decides.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use lockstep_api::{JobSet, annotations};

use crate::common::features::Features;
use crate::common::patterns::Patterns;
use crate::jobset::completed;
use crate::jobset::gang_pod::GangPod;
use crate::jobset::in_place::{Agents, Changed};

#[cfg(test)]
mod tests;

/// A JobSet, what stands around it, and the time.
///
/// `jobs`, `services` and `claims` are everything in the JobSet's namespace that carries its name in the label
/// `jobset.sigs.k8s.io/jobset-name`, whoever owns it: names that others hold are not free.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The JobSet itself.
    pub jobset: Arc<JobSet>,
    /// Jobs that carry the JobSet's name. [`Observed::new`] sorts them by name, and adds those that have completed and are gone.
    pub jobs: Vec<Arc<Job>>,
    /// Services that carry the JobSet's name.
    pub services: Vec<Arc<Service>>,
    /// Persistent volume claims that carry the JobSet's name.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// The JobSet's pods, as far as upstream's in-place restart agents are concerned.
    pub agent_pods: Vec<AgentPod>,
    /// Pods of the present restart attempt that cannot have agents, if the JobSet restarts in place.
    pub changed: Option<Changed>,
    /// The JobSet's pods of the present restart attempt, where it has a gang.
    pub gang_pods: Vec<GangPod>,
    /// Whether the API server serves PodGroups (`scheduling.k8s.io/v1alpha2`).
    pub pod_groups: bool,
    /// Whether node daemons can be there at all. Without them nobody restarts anything in place but kubelet and upstream's agents.
    pub has_daemons: bool,
    /// Whether one may be connected, or was: somebody who restarts workers in place, and whose restarts are counted.
    pub is_attended: bool,
    /// How agents get into containers.
    pub agents: Agents,
    /// What is switched on.
    pub features: Features,
    /// The patterns of its failure policy, where somebody has compiled them already.
    pub patterns: Option<Arc<Patterns>>,
    /// The present.
    pub now: Timestamp,
}

/// How the control plane was set up.
#[derive(Clone, Debug)]
pub struct Setting {
    /// See [`Observed::features`].
    pub features: Features,
    /// See [`Observed::has_daemons`].
    pub has_daemons: bool,
    /// See [`Observed::agents`].
    pub agents: Agents,
}

/// What upstream's in-place restart controller looks at in a pod (KEP-467).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPod {
    /// The pod has failed; its replacement may be there already.
    pub failed: bool,
    /// The pod has succeeded.
    pub succeeded: bool,
    /// The attempt that the pod's agent reports, if it does.
    pub attempt: Option<i32>,
    /// How often the container that restarted most has been restarted by kubelet.
    pub container_restarts: i32,
}

impl AgentPod {
    /// What a pod shows. An attempt that is no number, or a negative one, counts as not reported.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.into_iter().flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        Self {
            failed: phase == Some("Failed"),
            succeeded: phase == Some("Succeeded"),
            attempt: reported_attempt(&pod.metadata),
            container_restarts: containers
                .map(|container| container.restart_count)
                .max()
                .unwrap_or(0),
        }
    }
}

/// The attempt that upstream's in-place restart agent has written on its pod.
#[must_use]
pub fn reported_attempt(pod: &ObjectMeta) -> Option<i32> {
    let attempt = pod
        .annotations
        .as_ref()?
        .get(annotations::IN_PLACE_RESTART_ATTEMPT)?;
    attempt.parse().ok().filter(|attempt| *attempt >= 0)
}

impl Observed {
    /// Puts an observation together, in an order that does not depend on the caches it came from.
    #[must_use]
    pub fn new(
        jobset: Arc<JobSet>,
        jobs: Vec<Arc<Job>>,
        services: Vec<Arc<Service>>,
        now: Timestamp,
    ) -> Self {
        let mut jobs = completed::with_gone(&jobset, jobs);
        jobs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Self {
            jobset,
            jobs,
            services,
            claims: Vec::new(),
            agent_pods: Vec::new(),
            changed: None,
            gang_pods: Vec::new(),
            pod_groups: false,
            has_daemons: true,
            is_attended: true,
            agents: Agents::ByNode,
            features: Features::default(),
            patterns: None,
            now,
        }
    }
}

/// The owner that controls an object, if any.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// Whether the object is controlled by the JobSet with this UID.
#[must_use]
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}
