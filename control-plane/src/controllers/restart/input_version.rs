//! Whether what the API server shows of a group has to be gathered anew: for thousands of pods that takes milliseconds, and of what happens in a
//! restart most is in the JobSet's status alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_api::JobSet;
use lockstep_core::restart::Durable;

/// Domains of keys of annotations that are read.
const DOMAINS: [&str; 3] = ["lockstep.dev/", "jobset.sigs.k8s.io/", "jobset.x-k8s.io/"];

/// What a look at the API server was made from.
pub(super) struct InputVersion {
    /// Of the Jobs and pods.
    version: (u64, u64),
    jobset: Arc<JobSet>,
    /// Stages that have started, as its status says.
    started: BTreeSet<String>,
}

impl InputVersion {
    /// Of Jobs and pods of this version, and a JobSet whose status says what is `durable`.
    pub(super) fn new(version: (u64, u64), jobset: &Arc<JobSet>, durable: &Durable) -> Self {
        Self {
            version,
            jobset: Arc::clone(jobset),
            started: durable.started.clone(),
        }
    }

    /// Whether another look would show the same, but for what is durable.
    pub(super) fn is_same(&self, now: &Self) -> bool {
        let gangs = |jobset: &JobSet| jobset.status.as_ref().map(|status| status.gangs.clone());
        let completed = |jobset: &JobSet| jobset.status.as_ref().map(|status| status.completed_jobs.clone());
        self.version == now.version
            && self.started == now.started
            && (Arc::ptr_eq(&self.jobset, &now.jobset)
                || self.jobset.spec == now.jobset.spec
                    && own(&self.jobset).eq(own(&now.jobset))
                    && self.jobset.metadata.labels == now.jobset.metadata.labels
                    && self.jobset.metadata.owner_references == now.jobset.metadata.owner_references
                    && self.jobset.restarts() == now.jobset.restarts()
                    && gangs(&self.jobset) == gangs(&now.jobset)
                    && completed(&self.jobset) == completed(&now.jobset))
    }
}

/// The annotations that anything is decided by: those of JobSet and of Lockstep.
fn own(jobset: &JobSet) -> impl Iterator<Item = (&String, &String)> {
    let annotations = jobset.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| DOMAINS.iter().any(|domain| key.contains(domain)))
}

#[cfg(test)]
mod tests;
