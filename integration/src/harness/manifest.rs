//! Manifests of JobSets with shell workers.

use serde_json::{Value, json};

/// The image of the workers: busybox, which has `sh` and the usual commands.
pub const IMAGE: &str = "localhost/busybox:1";
/// Script of a worker that prints its restart attempt and then sleeps.
pub const IDLE: &str = r#"echo "attempt $LOCKSTEP_RESTART_ATTEMPT"; exec sleep 1000000"#;
/// The name of the worker container.
pub const CONTAINER: &str = "worker";

/// A JobSet with one replicatedJob of one Job. The methods change it.
#[derive(Debug, Clone)]
pub struct Manifest(pub Value);

impl Manifest {
    /// An in-place JobSet of `workers` workers that run `script` with `sh -c`.
    pub fn new(workers: u32, script: &str) -> Self {
        Self(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "group", "annotations": {}},
            "spec": {
                "failurePolicy": {"maxRestarts": 1000, "restartStrategy": "InPlaceRestart"},
                "replicatedJobs": [{
                    "name": "w",
                    "template": {"spec": {
                        "parallelism": workers,
                        "completions": workers,
                        "template": {"spec": {
                            "terminationGracePeriodSeconds": 2,
                            "restartPolicy": "OnFailure",
                            "containers": [{
                                "name": CONTAINER,
                                "image": IMAGE,
                                "imagePullPolicy": "Never",
                                "command": ["sh", "-c", script],
                            }],
                        }},
                    }},
                }],
            },
        }))
    }

    /// With this name, for a second JobSet in the same namespace.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.0["metadata"]["name"] = json!(name);
        self
    }

    /// With an annotation.
    #[must_use]
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// With this `maxRestarts`.
    #[must_use]
    pub fn max_restarts(mut self, restarts: u32) -> Self {
        self.0["spec"]["failurePolicy"]["maxRestarts"] = json!(restarts);
        self
    }

    /// With this `restartStrategy`.
    #[must_use]
    pub fn strategy(mut self, strategy: &str) -> Self {
        self.0["spec"]["failurePolicy"]["restartStrategy"] = json!(strategy);
        self
    }

    /// With these fields set in the spec of the Job template.
    #[must_use]
    pub fn job(mut self, fields: Value) -> Self {
        merge(
            &mut self.0["spec"]["replicatedJobs"][0]["template"]["spec"],
            fields,
        );
        self
    }

    /// With these fields set in the spec of the pod template.
    #[must_use]
    pub fn pod(mut self, fields: Value) -> Self {
        merge(
            &mut self.0["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
            fields,
        );
        self
    }

    /// With these fields set in the worker container.
    #[must_use]
    pub fn container(mut self, fields: Value) -> Self {
        let pod = &mut self.0["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
        merge(&mut pod["containers"][0], fields);
        self
    }

    /// With workers whose restart scope is `worker`.
    #[must_use]
    pub fn restarting_worker_restarts(mut self) -> Self {
        let template = &mut self.0["spec"]["replicatedJobs"][0]["template"];
        template["metadata"]["annotations"]["lockstep.dev/restart-scope"] = json!("worker");
        self
    }

    /// With another replicatedJob in front: one such worker, whose restart scope is the group.
    #[must_use]
    pub fn with_head(mut self, name: &str) -> Self {
        let mut head = self.0["spec"]["replicatedJobs"][0].clone();
        head["name"] = json!(name);
        let template = &mut head["template"];
        template["metadata"] = json!({});
        template["spec"]["parallelism"] = json!(1);
        template["spec"]["completions"] = json!(1);
        if let Some(jobs) = self.0["spec"]["replicatedJobs"].as_array_mut() {
            jobs.insert(0, head);
        }
        self
    }

    /// With this `restartPolicy` of the pods.
    #[must_use]
    pub fn restart_policy(self, policy: &str) -> Self {
        self.pod(json!({"restartPolicy": policy}))
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Sets `fields` in `object`; null removes a field.
fn merge(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { return };
    for (key, value) in fields {
        if value.is_null() {
            if let Some(object) = object.as_object_mut() {
                object.remove(&key);
            }
        } else {
            object[key] = value;
        }
    }
}
