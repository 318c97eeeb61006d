//! What the cache keeps of a pod: a tenth of what the API server sends.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::ray::names;

use super::cache_entry::version;
use super::cache_entry::{CacheEntry, known_by_name, mapped};
use super::follow::jobset_of;

/// A pod in the cache.
#[derive(Clone, Debug)]
pub struct WatchedPod {
    namespace: Box<str>,
    revision: u64,
    /// Name of its JobSet, by its label.
    jobset: Option<Box<str>>,
    /// The fields that are read.
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

    /// True if it may be the head of a RayCluster, judging by the name of its Job.
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

/// The event with what is kept of the pod.
pub(super) fn watched(event: Event<Pod>) -> Event<WatchedPod> {
    mapped(event, |pod| WatchedPod::of(&pod))
}

impl CacheEntry for WatchedPod {
    fn revision(&self) -> u64 {
        self.revision
    }

    /// Clones share nothing.
    fn is_same(&self, _: &Self) -> bool {
        false
    }
}

impl Lookup for WatchedPod {
    known_by_name!(Pod, summary.name);
}

#[cfg(test)]
mod tests {
    use lockstep_api::labels;

    use super::*;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        pod.metadata.resource_version = Some("7".to_owned());
        pod.metadata.labels = Some([(labels::JOBSET_NAME.to_owned(), "js".to_owned())].into());
        pod.metadata.annotations = Some([("note".to_owned(), "long".to_owned())].into());
        pod
    }

    #[test]
    fn only_the_fields_of_a_pod_that_are_read_are_kept() {
        let Event::Apply(kept) = watched(Event::Apply(pod())) else {
            panic!("another event")
        };
        assert_eq!(kept.jobset(), Some(ObjectRef::new("js").within("ns")));
        assert_eq!(
            (kept.summary.name.as_str(), kept.summary.uid.as_str()),
            ("p", "u")
        );
        assert_eq!(kept.named(), "p");
        assert_eq!(kept.revision(), 7);
        assert_eq!(kept.to_object_ref(()), ObjectRef::new("p").within("ns"));
    }

    #[test]
    fn a_pod_without_the_label_belongs_to_no_jobset() {
        let mut stray = pod();
        stray.metadata.labels = None;
        assert_eq!(WatchedPod::of(&stray).jobset(), None);
    }
}
