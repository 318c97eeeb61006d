//! What the cache keeps of a pod: a tenth of what the API server sends.

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::naming::job_name;
use lockstep_api::{JobSet, labels};
use lockstep_core::jobset::owner::controller_of;
use lockstep_core::jobset::placement::Member;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::ray::names;

use super::cache_entry::version;
use super::cache_entry::{CacheEntry, known_by_name, mapped};
use super::follow::jobset_of;
use super::namespace_budget::Weighs;

/// The memory for a pod beyond its texts: here, and in the maps that find it by its name and by its
/// JobSet.
const BEYOND_TEXT: usize = 700;
/// How often a pod's name and namespace are kept.
const COPIES: usize = 3;
/// The memory for a pod with exclusive placement beyond that, without texts that only it has.
const MEMBER: usize = 800;
/// The labels whose values are kept.
const KEPT_LABELS: [&str; 3] = [labels::JOBSET_NAME, labels::JOBSET_UID, labels::BATCH_JOB_NAME];

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

impl Weighs for Pod {
    /// The memory for what is kept of the pod, here and for [exclusive
    /// placement](super::members).
    fn bytes(&self) -> usize {
        let Self { metadata, spec, .. } = self;
        let names = [&metadata.name, &metadata.namespace, &metadata.uid];
        let names = names.into_iter().flatten().map(|name| COPIES * name.len());
        let label = |key: &&str| metadata.labels.as_ref()?.get(*key).map(String::len);
        let owner = controller_of(metadata).map(|owner| owner.uid.len());
        let node = spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref())
            .map(String::len);
        let kept = names
            .chain(KEPT_LABELS.iter().filter_map(label))
            .chain(owner)
            .chain(node);
        let placement = Member::of(self).map_or(0, |member| {
            let texts = [Some(&member.topology), member.selected.as_ref()];
            MEMBER + texts.into_iter().flatten().map(String::len).sum::<usize>()
        });
        kept.sum::<usize>() + BEYOND_TEXT + placement
    }
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
    use lockstep_api::annotations;

    use super::*;
    use crate::k8s::watch::namespace_budget::{ENTRY, USUAL_POD};

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
    fn the_largest_jobset_fits_into_the_share() {
        let mut worker = pod();
        let long = "1234567890-1234567890-1234567890-123456";
        worker.metadata.uid = Some(long.to_owned());
        worker.metadata.name = Some(format!("{long}-workers-0-12345"));
        let labels = KEPT_LABELS.map(|key| (key.to_owned(), long.to_owned()));
        worker.metadata.labels = Some(labels.into());
        let bytes = worker.bytes() + ENTRY;
        assert!(bytes <= USUAL_POD, "{bytes}");
    }

    #[test]
    fn a_pod_counts_as_what_is_kept_of_it() {
        let usual = pod().bytes();
        assert!((700..1000).contains(&usual), "{usual}");
        let mut noted = pod();
        noted.metadata.annotations = Some([("note".to_owned(), "long".repeat(1000))].into());
        assert_eq!(noted.bytes(), usual);
        let mut bound = pod();
        bound.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            node_name: Some("n".repeat(200)),
            ..Default::default()
        });
        assert_eq!(bound.bytes(), usual + 200);
        let mut placed = pod();
        let topology = (annotations::EXCLUSIVE_TOPOLOGY.to_owned(), "rack".to_owned());
        placed.metadata.annotations = Some([topology].into());
        assert!(placed.bytes() > usual + MEMBER, "{}", placed.bytes());
    }

    #[test]
    fn a_pod_without_the_label_belongs_to_no_jobset() {
        let mut stray = pod();
        stray.metadata.labels = None;
        assert_eq!(WatchedPod::of(&stray).jobset(), None);
    }
}
