//! What the cache keeps of a Job: its name, and the fields that are read, as text. The text takes a
//! third of the memory of the parsed object.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;

use super::cache_entry::version;
use super::cache_entry::{CacheEntry, known_by_name, mapped};
use super::follow::jobset_of;
use super::lean::Lean;
use super::namespace_budget::Weighs;

/// The most bytes of a usual Job, which has a few hundred.
const USUAL: usize = 8 << 10;

/// A Job in the cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedJob {
    name: Box<str>,
    namespace: Box<str>,
    /// Name of its JobSet, by its label.
    jobset: Option<Box<str>>,
    revision: u64,
    /// Shared by its clones.
    text: Arc<[u8]>,
}

impl PackedJob {
    /// Packs a Job from an answer of the API server, or as it was parsed leanly.
    pub(super) fn of(job: &Job) -> Self {
        Self {
            name: job.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: job.metadata.namespace.as_deref().unwrap_or_default().into(),
            jobset: jobset_of(job).map(|jobset| jobset.name.into()),
            revision: version(&job.metadata),
            // Maps have strings for keys and numbers are finite: this cannot fail.
            text: serde_json::to_vec(job).unwrap_or_default().into(),
        }
    }

    /// Parses the Job.
    pub(super) fn unpack(&self) -> Option<Job> {
        let Lean(job) = serde_json::from_slice(&self.text).ok()?;
        Some(job)
    }

    /// The bytes that are kept.
    pub(super) fn size(&self) -> usize {
        self.text.len()
    }

    /// True if both have the same text in memory.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text)
    }

    pub(super) fn jobset(&self) -> Option<ObjectRef<JobSet>> {
        Some(ObjectRef::new(self.jobset.as_deref()?).within(&self.namespace))
    }
}

/// The event with the packed Job.
pub(super) fn packed(event: Event<Job>) -> Event<PackedJob> {
    mapped(event, |job| PackedJob::of(&job))
}

impl CacheEntry for PackedJob {
    fn revision(&self) -> u64 {
        self.revision
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

impl Weighs for PackedJob {
    fn bytes(&self) -> usize {
        self.size().saturating_add(size_of::<Self>())
    }

    /// Usual Jobs have a budget of their own: a JobSet with a hidden Job cannot be reconciled.
    fn is_usual(&self) -> bool {
        self.size() <= USUAL
    }
}

impl Lookup for PackedJob {
    known_by_name!(Job, name);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen() -> Job {
        let text = json!({
            "metadata": {
                "name": "js-a-0", "namespace": "ns", "uid": "u", "resourceVersion": "12",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/restart-attempt": "2"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "JobSet", "name": "js", "uid": "o", "controller": true}],
                "managedFields": [{"manager": "m"}],
            },
            "spec": {
                "parallelism": 2, "completions": 3, "completionMode": "Indexed", "suspend": true, "backoffLimit": 0,
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]},
                "template": {
                    "metadata": {"annotations": {"lockstep.dev/in-place": "supervised"}},
                    "spec": {
                        "containers": [{"name": "worker", "image": "large"}],
                        "tolerations": [{"key": "k", "operator": "Exists"}],
                        "schedulingGates": [{"name": "g"}],
                    },
                },
            },
            "status": {
                "active": 1, "ready": 1, "completedIndexes": "0,2", "startTime": "2026-01-02T03:04:06Z",
                "conditions": [{"type": "Failed", "status": "True", "reason": "R", "message": "m",
                                "lastTransitionTime": "2026-01-02T03:04:07Z"}],
            },
        });
        let Lean(job) = serde_json::from_value(text).unwrap();
        job
    }

    #[test]
    fn a_packed_job_keeps_every_field_that_is_read() {
        let Event::Apply(kept) = packed(Event::Apply(seen())) else {
            panic!("another event")
        };
        assert_eq!(kept.unpack(), Some(seen()));
        assert_eq!(kept.revision(), 12);
        assert_eq!(kept.jobset(), Some(ObjectRef::new("js").within("ns")));
        assert_eq!(kept.to_object_ref(()), ObjectRef::new("js-a-0").within("ns"));
    }

    #[test]
    fn a_job_with_nothing_in_it_is_kept_too() {
        let empty = Job::default();
        let kept = PackedJob::of(&empty);
        assert_eq!(kept.unpack(), Some(empty));
        assert_eq!(kept.jobset(), None);
    }
}
