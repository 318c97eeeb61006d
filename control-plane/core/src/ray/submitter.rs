//! The submission of a job to Ray: by a Job, or by an HTTP request.
//!
//! The submitter never stops the job: if it is evicted, or loses its node, the job must run on. At
//! a deadline and at deletion the controller itself stops the job.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ray::{RayJob, RayJobSpec, RayJobStatus, keys};
use serde_json::{Value, json};

use super::job::owner;
use super::pod::env;
use super::text;

/// The submitter's program.
const SCRIPT: &str = include_str!("submitter.py");
/// Exit code of a submitter whose job has failed.
const JOB_FAILED: i32 = 1;
/// Name of the container, as in KubeRay.
const CONTAINER: &str = "ray-job-submitter";
/// How often the submitter may fail by itself.
const BACKOFF_LIMIT: i32 = 2;
/// How long after the job's deadline its submitter is ended.
const GRACE_SECONDS: i64 = 60;
/// Environment variable with the number of the attempt, from 0.
const ATTEMPT: &str = "RAYJOB_ATTEMPT";

/// The runtime environment of the spec.
///
/// # Errors
/// The fault. Ray accepts only variables that are strings, and refuses a job with others.
pub(super) fn stated_environment(spec: &RayJobSpec) -> Result<Value, String> {
    let stated = read_environment(spec)?;
    let variables = stated.get("env_vars").and_then(Value::as_object);
    let mut variables = variables.into_iter().flatten();
    match variables.find(|(_, value)| !value.is_string()) {
        Some((name, value)) => Err(not_a_string(name, value)),
        None => Ok(stated),
    }
}

/// Why a variable is invalid, and what to write instead.
fn not_a_string(name: &str, value: &Value) -> String {
    let name = text::beginning(name);
    let advice = match value {
        Value::Null => "it has no value: write \"\" or omit it".to_owned(),
        Value::Array(_) | Value::Object(_) => "it is a list or a map".to_owned(),
        value => {
            let value = text::beginning(&value.to_string());
            format!("quote it: write \"{value}\" and not {value}")
        }
    };
    format!("env_vars.{name}: must be a string, Ray accepts nothing else: {advice}")
}

/// The runtime environment of the spec, with variables of any type.
fn read_environment(spec: &RayJobSpec) -> Result<Value, String> {
    if spec.runtime_env_yaml.trim().is_empty() {
        return Ok(json!({}));
    }
    match text::yaml(&spec.runtime_env_yaml)? {
        // The variable of the attempt is added to them, which must not overwrite anything.
        Value::Object(stated)
            if stated
                .get("env_vars")
                .is_some_and(|variables| !variables.is_object() && !variables.is_null()) =>
        {
            Err("env_vars must be a map".to_owned())
        }
        stated @ Value::Object(_) => Ok(stated),
        Value::Null => Ok(json!({})),
        _ => Err("must be a map".to_owned()),
    }
}

/// The runtime environment with the number of the attempt.
fn environment(job: &RayJob, status: &RayJobStatus) -> Value {
    // If it bypassed the webhook, Ray reports the fault.
    let mut environment = read_environment(&job.spec).unwrap_or_else(|_| json!({}));
    if !environment["env_vars"].is_object() {
        environment["env_vars"] = json!({});
    }
    if environment["env_vars"][ATTEMPT].is_null() {
        environment["env_vars"][ATTEMPT] = json!(status.num_retries.to_string());
    }
    environment
}

/// True if the submitter runs the user's own command.
pub(super) fn has_own_command(spec: &RayJobSpec) -> bool {
    let pod = spec
        .submitter_pod_template
        .as_ref()
        .and_then(|template| template.spec.as_ref());
    pod.and_then(|pod| pod.containers.first())
        .is_some_and(has_command)
}

fn has_command(container: &Container) -> bool {
    container
        .command
        .as_ref()
        .is_some_and(|command| !command.is_empty())
}

/// The body of the request that submits the job (Ray's Jobs REST API).
pub(super) fn body(job: &RayJob, status: &RayJobStatus) -> Value {
    let spec = &job.spec;
    let mut body = json!({
        "entrypoint": spec.entrypoint.trim(),
        "submission_id": status.job_id,
        "runtime_env": environment(job, status),
        "metadata": spec.metadata,
    });
    if let Some(cpus) = spec.entrypoint_num_cpus {
        body["entrypoint_num_cpus"] = json!(cpus);
    }
    if let Some(gpus) = spec.entrypoint_num_gpus {
        body["entrypoint_num_gpus"] = json!(gpus);
    }
    if let Ok(resources) = text::json(&spec.entrypoint_resources) {
        body["entrypoint_resources"] = resources;
    }
    body
}

/// The arguments of `ray job submit`.
fn arguments(job: &RayJob, status: &RayJobStatus) -> Vec<String> {
    let spec = &job.spec;
    let mut arguments = vec![
        "--runtime-env-json".to_owned(),
        environment(job, status).to_string(),
    ];
    let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
    if !spec.metadata.is_empty() {
        add("--metadata-json", json!(spec.metadata).to_string());
    }
    if let Some(cpus) = spec.entrypoint_num_cpus {
        add("--entrypoint-num-cpus", cpus.to_string());
    }
    if let Some(gpus) = spec.entrypoint_num_gpus {
        add("--entrypoint-num-gpus", gpus.to_string());
    }
    if !spec.entrypoint_resources.is_empty() {
        add("--entrypoint-resources", spec.entrypoint_resources.clone());
    }
    arguments.extend(["--".to_owned(), spec.entrypoint.trim().to_owned()]);
    arguments
}

/// The Job that submits the current attempt. If its pod is lost the job runs on: the next pod
/// attaches to it.
pub(super) fn job(job: &RayJob, status: &RayJobStatus, now: Timestamp) -> Job {
    let spec = &job.spec;
    let mut labels: BTreeMap<String, String> = keys::originated_from_job(job.name()).into();
    labels.insert(keys::CLUSTER.to_owned(), status.ray_cluster_name.clone());
    let elapsed = status
        .start_time
        .as_ref()
        .map_or(0, |start| now.duration_since(start.0).as_secs());
    let config = spec.submitter_config.as_ref();
    let template = template(job, status);
    Job {
        metadata: ObjectMeta {
            name: job.metadata.name.clone(),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some([(keys::JOB_ID.to_owned(), status.job_id.clone())].into()),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(
                config
                    .and_then(|config| config.backoff_limit)
                    .unwrap_or(BACKOFF_LIMIT),
            ),
            active_deadline_seconds: spec.active_deadline_seconds.map(|deadline| {
                deadline
                    .saturating_sub(elapsed)
                    .max(0)
                    .saturating_add(GRACE_SECONDS)
            }),
            pod_failure_policy: Some(failure_policy(&template)),
            template,
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// A failed job is not submitted again, and a disrupted pod is not a failure. Exit codes of other
/// containers say nothing about the job.
fn failure_policy(template: &PodTemplateSpec) -> PodFailurePolicy {
    let pod = template.spec.as_ref();
    let submits = pod.and_then(|pod| pod.containers.first());
    PodFailurePolicy {
        rules: vec![
            PodFailurePolicyRule {
                action: "Ignore".to_owned(),
                on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                    type_: "DisruptionTarget".to_owned(),
                    status: Some("True".to_owned()),
                }]),
                ..PodFailurePolicyRule::default()
            },
            PodFailurePolicyRule {
                action: "FailJob".to_owned(),
                on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
                    container_name: submits.map(|container| container.name.clone()),
                    operator: "In".to_owned(),
                    values: vec![JOB_FAILED],
                }),
                ..PodFailurePolicyRule::default()
            },
        ],
    }
}

fn template(job: &RayJob, status: &RayJobStatus) -> PodTemplateSpec {
    let mut template = job
        .spec
        .submitter_pod_template
        .clone()
        .unwrap_or_else(|| default_template(job));
    let meta = template.metadata.get_or_insert_default();
    let labels = meta.labels.get_or_insert_default();
    labels.extend(keys::originated_from_job(job.name()));
    let pod = template.spec.get_or_insert_default();
    // The failure policy requires it.
    pod.restart_policy = Some("Never".to_owned());
    let head = job.spec.ray_cluster_spec.as_ref();
    let head = head.and_then(|cluster| cluster.head_group_spec.template.spec.as_ref());
    if let Some(container) = pod.containers.first_mut() {
        if container.image.is_none() {
            container.image = head.and_then(|pod| pod.containers.first()?.image.clone());
        }
        if !has_command(container) {
            container.command = Some(["python3", "-u", "-c", SCRIPT].map(str::to_owned).into());
        }
        env(container, "PYTHONUNBUFFERED", "1");
        for (name, value) in [
            ("RAY_DASHBOARD_ADDRESS", status.dashboard_url.clone()),
            ("RAY_JOB_SUBMISSION_ID", status.job_id.clone()),
            ("RAYJOB_SESSION", status.session.clone()),
            (ATTEMPT, status.num_retries.to_string()),
            ("RAYJOB_SUBMIT", json!(arguments(job, status)).to_string()),
        ] {
            container
                .env
                .get_or_insert_default()
                .retain(|variable| variable.name != name);
            env(container, name, &literal(&value));
        }
    }
    template
}

/// Escapes a text for the value of a variable: the kubelet replaces `$(NAME)` by another variable,
/// and `$$` by `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn default_template(job: &RayJob) -> PodTemplateSpec {
    let head = job
        .spec
        .ray_cluster_spec
        .as_ref()
        .map(|cluster| &cluster.head_group_spec.template);
    let pod = head.and_then(|template| template.spec.as_ref());
    let ray = pod.and_then(|pod| pod.containers.first());
    let amounts = |cpu: &str, memory: &str| {
        let amounts = [("cpu", cpu), ("memory", memory)];
        Some(
            amounts
                .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
                .into(),
        )
    };
    PodTemplateSpec {
        metadata: None,
        spec: Some(PodSpec {
            containers: vec![Container {
                name: CONTAINER.to_owned(),
                image: ray.and_then(|container| container.image.clone()),
                image_pull_policy: ray.and_then(|container| container.image_pull_policy.clone()),
                resources: Some(ResourceRequirements {
                    limits: amounts("1", "1Gi"),
                    requests: amounts("500m", "200Mi"),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            image_pull_secrets: pod.and_then(|pod| pod.image_pull_secrets.clone()),
            ..PodSpec::default()
        }),
    }
}
