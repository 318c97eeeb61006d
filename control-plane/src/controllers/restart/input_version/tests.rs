//! Which changes need another look, and which do not.

use serde_json::{Value, json};

use super::super::convert::durable_of;
use super::super::observe::{View, view_of};
use super::*;

/// A JobSet with these fields added or replaced.
fn jobset(change: &Value) -> Arc<JobSet> {
    let mut jobset = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "default", "uid": "1", "resourceVersion": "1"},
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "gang": {"minAvailable": 2},
            "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {
                "parallelism": 2, "completions": 2, "completionMode": "Indexed",
                "template": {"spec": {"containers": [{"name": "worker", "image": "i", "command": ["c"]}]}},
            }}}],
        },
        "status": {
            "restarts": 0,
            "gangs": [{"name": "js", "restartAttempt": 0, "phase": "Waiting", "minAvailable": 2}],
            "inPlaceRestart": {"phase": "InSync", "generation": 1, "released": 1, "started": []},
        },
    });
    json_patch::merge(&mut jobset, change);
    Arc::new(serde_json::from_value(jobset).unwrap())
}

fn basis(version: (u64, u64), jobset: &Arc<JobSet>) -> InputVersion {
    InputVersion::new(version, jobset, &durable_of(jobset.status.as_ref()))
}

fn view(jobset: &JobSet) -> View {
    view_of(jobset, Vec::new(), &[], &durable_of(jobset.status.as_ref()))
}

#[test]
fn a_look_is_kept_where_only_what_a_restart_writes_has_changed() {
    let changes = [
        json!({}),
        json!({"metadata": {"resourceVersion": "2", "managedFields": []}}),
        json!({"status": {"inPlaceRestart": {"phase": "Stopping", "generation": 2, "epoch": 7}}}),
        json!({"status": {"inPlaceRestart": {"phase": "InSync", "released": 2, "restarts": 1}}}),
        json!({"status": {"conditions": [{
            "type": "RestartingJobSet", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}}),
    ];
    for change in changes {
        let (before, after) = (jobset(&json!({})), jobset(&change));
        assert!(basis((1, 1), &before).is_same(&basis((1, 1), &after)), "{change}");
        assert_eq!(view(&before), view(&after), "{change}");
    }
}

#[test]
fn a_look_is_not_kept_where_it_would_show_something_else() {
    let changes = [
        json!({"spec": {"suspend": true}}),
        json!({"spec": {"failurePolicy": {"maxRestarts": 4}}}),
        json!({"metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/inplace-timeout": "7s"}}}),
        json!({"metadata": {"annotations": {"lockstep.dev/restart-request": "1"}}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "2", "controller": true},
        ]}}),
        json!({"status": {"restarts": 1}}),
        json!({"status": {"gangs": [{"name": "js", "restartAttempt": 0, "phase": "Scheduled", "minAvailable": 2}]}}),
        json!({"status": {"inPlaceRestart": {"started": ["w"]}}}),
    ];
    let before = jobset(&json!({}));
    for change in changes {
        let after = jobset(&change);
        assert!(
            !basis((1, 1), &before).is_same(&basis((1, 1), &after)),
            "{change}"
        );
    }
    for version in [(2, 1), (1, 2)] {
        assert!(
            !basis((1, 1), &before).is_same(&basis(version, &before)),
            "{version:?}"
        );
    }
}
