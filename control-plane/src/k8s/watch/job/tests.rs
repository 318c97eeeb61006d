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
fn what_was_read_of_a_job_is_what_is_kept_of_it() {
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
