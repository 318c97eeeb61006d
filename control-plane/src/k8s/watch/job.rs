//! What the cache keeps of a Job: its name, and the fields that are read, as compressed text. That
//! takes a tenth of the memory of the parsed object.

use std::sync::{Arc, LazyLock};

use k8s_openapi::api::batch::v1::Job;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::{JobSet, annotations, labels};
use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde_json::json;

use super::cache_entry::version;
use super::cache_entry::{CacheEntry, known_by_name, mapped};
use super::follow::jobset_of;
use super::lean::Lean;
use super::namespace_budget::Weighs;

/// The most bytes of a usual Job, which has a few hundred.
const USUAL: usize = 8 << 10;

/// The memory for a Job beyond its text: here, in the maps that find it by its name and by its
/// JobSet, and in the budget's.
const BEYOND_TEXT: usize = 700;
/// The most text of which only the compressed bytes count. Text of any length may compress to
/// nothing, and all Jobs of a JobSet are decompressed together, so text beyond this counts in full.
const PLAIN_TEXT: usize = 1 << 10;

/// The text of a usual Job. Others are compressed against it: nearly all of their text is in it.
static SAMPLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let job = json!({
        "metadata": {
            "name": "-workers-0", "namespace": "default", "uid": "-",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                labels::JOBSET_NAME: "-", labels::JOBSET_UID: "-", labels::REPLICATED_JOB_NAME: "workers",
                labels::JOB_INDEX: "0", labels::RESTART_ATTEMPT: "0",
            },
            "ownerReferences": [{
                "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "-", "uid": "-",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "backoffLimit": 6, "parallelism": 1, "completions": 1, "completionMode": "Indexed", "suspend": true,
            "template": {"metadata": {"annotations": {annotations::IN_PLACE: "supervised"}}},
        },
        "status": {
            "active": 1, "ready": 1, "terminating": 0, "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{
                "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended",
                "lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    let sample = serde_json::from_value(job).map(|Lean(job): Lean<Job>| job);
    sample.ok().map(|job| text_of(&job)).unwrap_or_default()
});

fn text_of(job: &Job) -> Vec<u8> {
    // Maps have strings for keys and numbers are finite: this cannot fail.
    serde_json::to_vec(job).unwrap_or_default()
}

/// A Job in the cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedJob {
    name: Box<str>,
    namespace: Box<str>,
    /// Name of its JobSet, by its label.
    jobset: Option<Box<str>>,
    revision: u64,
    /// The length of its text.
    length: usize,
    /// Its text, compressed with [`SAMPLE`] as the dictionary. Shared by its clones.
    compressed: Arc<[u8]>,
}

impl PackedJob {
    /// Packs a Job from an answer of the API server, or as it was parsed leanly.
    pub(super) fn of(job: &Job) -> Self {
        let text = text_of(job);
        Self {
            name: job.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: job.metadata.namespace.as_deref().unwrap_or_default().into(),
            jobset: jobset_of(job).map(|jobset| jobset.name.into()),
            revision: version(&job.metadata),
            length: text.len(),
            compressed: compress_with_dict(&text, &SAMPLE).into(),
        }
    }

    /// Parses the Job.
    pub(super) fn unpack(&self) -> Option<Job> {
        let text = decompress_with_dict(&self.compressed, self.length, &SAMPLE).ok()?;
        let Lean(job) = serde_json::from_slice(&text).ok()?;
        Some(job)
    }

    /// The bytes of its text, which is what parsing it costs.
    pub(super) fn size(&self) -> usize {
        self.length
    }

    /// True if both have the same text in memory.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.compressed, &other.compressed)
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
        let beyond = self.length.saturating_sub(PLAIN_TEXT);
        self.compressed
            .len()
            .saturating_add(BEYOND_TEXT)
            .saturating_add(beyond)
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
    use serde_json::Value;

    use super::*;
    use crate::k8s::watch::namespace_budget::{ENTRY, USUAL_JOB};

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

    /// A Job as the control plane creates it, with this status.
    fn usual(status: &Value) -> Job {
        let seen = serde_json::from_value(json!({
            "metadata": {
                "name": "train-7f3c-workers-1234", "namespace": "team-a", "resourceVersion": "129832",
                "uid": "0b2c9d0e-2b3c-4f3e-9f11-3d6a3c1f7e55", "creationTimestamp": "2026-11-12T13:14:15Z",
                "labels": {
                    labels::JOBSET_NAME: "train-7f3c", labels::JOBSET_UID: "7d1f6a52-94a0-44a7-8f0c-1c2f5f6a7b8c",
                    labels::REPLICATED_JOB_NAME: "workers", labels::JOB_INDEX: "1234", labels::RESTART_ATTEMPT: "3",
                },
                "ownerReferences": [{
                    "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train-7f3c",
                    "uid": "7d1f6a52-94a0-44a7-8f0c-1c2f5f6a7b8c", "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {"parallelism": 8, "completions": 8, "completionMode": "Indexed", "backoffLimit": 0, "template": {}},
            "status": status,
        }));
        let Lean(job): Lean<Job> = seen.unwrap();
        job
    }

    #[test]
    fn a_usual_job_takes_a_third_of_its_text() {
        let job = usual(&json!({"active": 8, "ready": 8, "startTime": "2026-11-12T13:14:16Z"}));
        let kept = PackedJob::of(&job);
        let compressed = kept.compressed.len();
        assert!(compressed * 3 < kept.size(), "{compressed} of {}", kept.size());
        assert_eq!(kept.unpack(), Some(job));
    }

    #[test]
    fn as_many_usual_jobs_as_a_jobset_may_have_fit_into_any_process() {
        let condition = |kind: &str, reason: &str| {
            json!({
                "type": kind, "status": "True", "reason": reason, "message": "Reached expected number of succeeded pods",
                "lastProbeTime": "2026-11-12T15:16:17Z", "lastTransitionTime": "2026-11-12T15:16:17Z",
            })
        };
        let ended = usual(&json!({
            "startTime": "2026-11-12T13:14:16Z", "completionTime": "2026-11-12T15:16:17Z", "succeeded": 8,
            "completedIndexes": "0-7", "uncountedTerminatedPods": {}, "ready": 0, "terminating": 0,
            "conditions": [
                condition("SuccessCriteriaMet", "CompletionsReached"), condition("Complete", "CompletionsReached"),
            ],
        }));
        let bytes = PackedJob::of(&ended).bytes() + ENTRY;
        assert!(bytes <= USUAL_JOB, "{bytes}");
    }

    #[test]
    fn text_that_compresses_to_nothing_counts_in_full() {
        let tolerations = vec![json!({"key": "k"}); 100_000];
        let seen =
            json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"tolerations": tolerations}}}});
        let Lean(job): Lean<Job> = serde_json::from_value(seen).unwrap();
        let kept = PackedJob::of(&job);
        assert!(kept.compressed.len() < kept.size() / 100);
        assert!(kept.bytes() + PLAIN_TEXT >= kept.size());
        assert!(!kept.is_usual());
    }
}
