//! The API server in the benchmark: the JobSets, and the count of writes.

use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};

/// Most pods of one Job.
const PER_JOB: usize = 500;

const REQUESTS: &str = "apiserver_request_total{";
/// Verbs that only read.
const READS: [&str; 4] = ["GET", "LIST", "WATCH", "CONNECT"];
/// Resources that are written without restarts, too: by leaders, for authentication, and by
/// kubelets.
const OF_OTHERS: [&str; 5] = ["leases", "tokenreviews", "subjectaccessreviews", "pods", "nodes"];

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

/// A JobSet of this many pods, eight of which fill a node.
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
            // The same worker may fail again soon.
            "annotations": {"lockstep.dev/max-backoff": "0s"},
        },
        "spec": {
            "failurePolicy": {"restartStrategy": strategy, "maxRestarts": 1000},
            "replicatedJobs": [{"name": "workers", "replicas": jobs, "template": {"spec": job}}],
        },
    })
}

/// The number of writes since the API server was started.
pub(super) async fn writes(client: &Client) -> Result<f64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await?;
    let writes = text.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix(REQUESTS)?.rsplit_once("} ")?;
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split('"').next()
        };
        let is_ours = !READS.contains(&label("verb")?) && !OF_OTHERS.contains(&label("resource")?);
        is_ours.then(|| count.parse::<f64>().ok())?
    });
    Ok(writes.sum())
}
