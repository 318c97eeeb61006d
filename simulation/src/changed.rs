//! Pods that a policy of the cluster has changed after their template was judged: their workers have no agent, and kubelet starts them again by itself, or does
//! not at all.
//!
//! The pod says so itself from the moment at which it is made. The daemon puts no agent into it and looks after its containers as after others without one.
//! Workers of other pods of the group have agents.

use lockstep_api::annotations;

use crate::rng::Rng;
use crate::scenario::{Profile, Scenario};
use crate::world::World;

impl Scenario {
    /// In an eighth of the scenarios in which only Lockstep or everything fails, but for RayClusters, gangs, Jobs whose time is limited, and those in which
    /// other workers have no agents, a policy changes the pods of a replicatedJob, half of which are never restarted. `rng` is none that anything else is drawn from.
    pub(crate) fn choose_changed(&mut self, rng: &mut Rng) {
        let other =
            self.elastic || self.gang.is_some() || self.time_limited || self.plain || self.daemons_late;
        if rng.below(8) > 0 || self.profile == Profile::Clean || other || self.leftovers.is_some() {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let index = rng.index(jobs.len());
        let job = &mut jobs[index];
        if let Some(metadata) = &mut job.template.metadata
            && let Some(said) = &mut metadata.annotations
        {
            said.remove(annotations::RESTART_SCOPE);
        }
        let pod = job.template.spec.as_mut();
        if let Some(pod) = pod.and_then(|spec| spec.template.spec.as_mut()) {
            let policy = if rng.below(2) == 0 { "Never" } else { "OnFailure" };
            pod.restart_policy = Some(policy.to_owned());
        }
        self.changed = Some(job.name.clone());
        // Nobody else is without an agent.
        self.plugin_required = true;
    }

    /// Whether workers are without an agent on purpose.
    pub(crate) fn has_plain(&self) -> bool {
        self.plain || self.changed.is_some()
    }
}

impl World {
    /// Whether a policy changes the pods of this Job.
    pub(crate) fn is_changed(&self, job: &str) -> bool {
        let stage = job.split('-').nth(1);
        stage.is_some() && stage == self.scenario.changed.as_deref()
    }
}
