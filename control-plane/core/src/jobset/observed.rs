//! What the control plane sees of one JobSet when it decides.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Service},
};
use lockstep_api::JobSet;

use crate::common::features::Features;
use crate::common::patterns::Patterns;
use crate::jobset::completed;
use crate::jobset::in_place::Agents;
use crate::jobset::pod::{Changed, GangPod};
use crate::jobset::upstream_agent::AgentPod;

/// A JobSet, what stands around it, and the time.
///
/// `jobs`, `services` and `claims` are everything in the JobSet's namespace that carries its name
/// in the label `jobset.sigs.k8s.io/jobset-name`, whatever their owner: names that others hold are
/// not free.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The JobSet itself.
    pub jobset: Arc<JobSet>,
    /// Jobs that carry the JobSet's name. [`Observed::new`] sorts them by name, and adds those that
    /// have completed and are gone.
    pub jobs: Vec<Arc<Job>>,
    /// Services that carry the JobSet's name.
    pub services: Vec<Arc<Service>>,
    /// Persistent volume claims that carry the JobSet's name.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// The JobSet's pods, as far as upstream's in-place restart agents are concerned.
    pub agent_pods: Vec<AgentPod>,
    /// Pods of the present restart attempt that cannot have agents, if the JobSet restarts in
    /// place.
    pub changed: Option<Changed>,
    /// The JobSet's pods of the present restart attempt, where it has a gang.
    pub gang_pods: Vec<GangPod>,
    /// True if the API server serves PodGroups (`scheduling.k8s.io/v1alpha2`).
    pub pod_groups: bool,
    /// True if node daemons can be there at all. Without them only the kubelet and upstream's
    /// agents restart anything in place.
    pub has_daemons: bool,
    /// True if one may be connected, or was: a daemon that restarts workers in place, and whose
    /// restarts are counted.
    pub is_attended: bool,
    /// How agents get into containers.
    pub agents: Agents,
    /// What is switched on.
    pub features: Features,
    /// The patterns of its failure policy, if they are compiled already.
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
