//! What is kept of a pod: a tenth of what the API server says of it.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::ray::names;

use super::cache_entry::{Kept, known_by_name, mapped};
use super::follow::jobset_of;
use super::own_writes::version;

#[cfg(test)]
mod tests;

/// A pod in the cache.
#[derive(Clone, Debug)]
pub struct WatchedPod {
    namespace: Box<str>,
    revision: u64,
    /// Name of its JobSet, by its label.
    jobset: Option<Box<str>>,
    /// What is read of it.
    pub summary: PodSummary,
}

impl WatchedPod {
    fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
            revision: version(&pod.metadata),
            jobset: jobset_of(pod).map(|jobset| jobset.name.into()),
            summary: PodSummary::of(pod),
        }
    }

    /// Whether it may be the head of a RayCluster, by the name of its Job.
    pub(super) fn is_of_ray_head(&self) -> bool {
        let (Some(jobset), Some(job)) = (&self.jobset, &self.summary.job) else {
            return false;
        };
        *job == job_name(jobset, names::HEAD, 0)
    }

    pub(super) fn jobset(&self) -> Option<ObjectRef<JobSet>> {
        let jobset = ObjectRef::new(self.jobset.as_deref()?);
        Some(jobset.within(&self.namespace))
    }
}

/// The same event, of what is kept.
pub(super) fn watched(event: Event<Pod>) -> Event<WatchedPod> {
    mapped(event, |pod| WatchedPod::of(&pod))
}

impl Kept for WatchedPod {
    fn revision(&self) -> u64 {
        self.revision
    }
}

impl Lookup for WatchedPod {
    known_by_name!(Pod, summary.name);
}
