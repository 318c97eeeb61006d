//! The JobSets of the benchmark.

use serde_json::{Value, json};

/// Pods of one Job at most.
const PER_JOB: usize = 500;

/// How a JobSet restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restarts {
    InPlace,
    Recreate,
}

impl Restarts {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InPlace => "in-place",
            Self::Recreate => "recreate",
        }
    }
}

/// A JobSet of so many pods, eight of which fill a node.
pub(super) fn jobset(pods: usize, restarts: Restarts) -> Value {
    let jobs = pods.div_ceil(PER_JOB);
    let each = pods / jobs;
    let mut job = json!({
        "parallelism": each,
        "completions": each,
        "completionMode": "Indexed",
        "template": {"spec": {
            "restartPolicy": "OnFailure",
            "containers": [{"name": "worker", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        }},
    });
    let strategy = match restarts {
        Restarts::InPlace => "InPlaceRestart",
        Restarts::Recreate => {
            job["backoffLimit"] = json!(0);
            job["template"]["spec"]["restartPolicy"] = json!("Never");
            "Recreate"
        }
    };
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": restarts.name(),
            // The same worker may fail soon again.
            "annotations": {"lockstep.dev/max-backoff": "0s"},
        },
        "spec": {
            "failurePolicy": {"restartStrategy": strategy, "maxRestarts": 1000},
            "replicatedJobs": [{"name": "workers", "replicas": jobs, "template": {"spec": job}}],
        },
    })
}
