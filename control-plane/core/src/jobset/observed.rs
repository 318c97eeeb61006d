//! What the control plane knows about one JobSet when it decides.

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

/// A JobSet, its related objects, and the time.
///
/// `jobs`, `services` and `claims` are all objects in the JobSet's namespace that have its name in
/// the label `jobset.sigs.k8s.io/jobset-name`, whatever their owner: a name that another owner
/// holds is not free.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The JobSet itself.
    pub jobset: Arc<JobSet>,
    /// Jobs with the JobSet's name as a label. [`Observed::new`] sorts them by name, and adds
    /// stand-ins for those that have completed and are gone.
    pub jobs: Vec<Arc<Job>>,
    /// Services with the JobSet's name as a label.
    pub services: Vec<Arc<Service>>,
    /// Persistent volume claims with the JobSet's name as a label.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// The JobSet's pods as upstream's in-place restart controller sees them.
    pub agent_pods: Vec<AgentPod>,
    /// Pods of the current restart attempt that cannot have agents, if the JobSet restarts in
    /// place.
    pub changed: Option<Changed>,
    /// The JobSet's pods of the current restart attempt, if it has a gang.
    pub gang_pods: Vec<GangPod>,
    /// True if the API server serves PodGroups (`scheduling.k8s.io`).
    pub pod_groups: bool,
    /// True if node daemons are installed. Without them only the kubelet and upstream's agents
    /// restart workers in place.
    pub has_daemons: bool,
    /// True if a node daemon is connected, or was or may be: its in-place restarts are counted.
    pub is_attended: bool,
    /// How agents get into containers.
    pub agents: Agents,
    /// The enabled feature gates.
    pub features: Features,
    /// The patterns of its failure policy, if they are already compiled.
    pub patterns: Option<Arc<Patterns>>,
    /// The current time.
    pub now: Timestamp,
}

/// How the control plane is configured.
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
    /// Builds an observation whose order does not depend on the caches that it comes from.
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
