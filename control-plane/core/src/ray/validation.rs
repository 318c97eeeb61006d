//! What Ray's resources must fulfil, with KubeRay's limits. Messages name the field.

mod annotations;
mod groups;
mod options;
mod pods;
pub(super) mod protection;

use lockstep_api::ray::{
    ConcurrencyPolicy, RayCluster, RayCronJob, RayJob, RayJobSpec, RayJobSubmissionMode,
};

use super::cron::Schedule;
use super::text;
use crate::common::features::Features;
use crate::common::syntax::dns1035_label;
use crate::common::violation::Violation;

use annotations::Annotations;
pub(crate) use annotations::unsupported_annotation;

/// Longest name of a RayJob.
const LONGEST_JOB_NAME: usize = 47;
/// Longest name of a RayCronJob: the names of its jobs have the minutes since 1970 after it, for which KubeRay leaves ten digits.
const LONGEST_CRON_NAME: usize = LONGEST_JOB_NAME - "-1234567890".len();
/// Longest name of a RayCluster.
const LONGEST_CLUSTER_NAME: usize = 53;

/// Everything that is wrong with a RayCluster.
#[must_use]
pub fn cluster(cluster: &RayCluster) -> Vec<Violation> {
    let mut violations = Vec::new();
    name(
        "RayCluster",
        cluster.name(),
        LONGEST_CLUSTER_NAME,
        &mut violations,
    );
    let annotations = cluster.metadata.annotations.as_ref();
    groups::validate("spec", &cluster.spec, annotations, &mut violations);
    options::validate("spec", &cluster.spec, annotations, false, &mut violations);
    pods::validate("spec", &cluster.spec, &mut violations);
    compiled("spec", cluster, &mut violations);
    violations
}

/// Everything that is wrong with a RayJob.
#[must_use]
pub fn job(job: &RayJob) -> Vec<Violation> {
    let mut violations = Vec::new();
    name("RayJob", job.name(), LONGEST_JOB_NAME, &mut violations);
    let annotations = job.metadata.annotations.as_ref();
    job_spec("spec", &job.spec, annotations, &mut violations);
    compiled(
        "spec.rayClusterSpec",
        &super::job::first_cluster(job),
        &mut violations,
    );
    violations
}

/// Everything that is wrong with a RayCronJob.
#[must_use]
pub fn cron(cron: &RayCronJob) -> Vec<Violation> {
    let mut violations = Vec::new();
    name("RayCronJob", cron.name(), LONGEST_CRON_NAME, &mut violations);
    let spec = &cron.spec;
    violations.extend(Schedule::of(spec).err().into_iter().flatten());
    let mut wrong =
        |field: &str, message: String| violations.push(Violation::new(format!("spec.{field}"), message));
    if let ConcurrencyPolicy::Other(policy) = spec.concurrency_policy() {
        let supported = ConcurrencyPolicy::VALUES.join(", ");
        wrong(
            "concurrencyPolicy",
            format!("{policy} is not supported; supported values: {supported}"),
        );
    }
    let limits = [
        ("startingDeadlineSeconds", spec.starting_deadline_seconds),
        (
            "successfulJobsHistoryLimit",
            spec.successful_jobs_history_limit.map(i64::from),
        ),
        (
            "failedJobsHistoryLimit",
            spec.failed_jobs_history_limit.map(i64::from),
        ),
    ];
    for (field, value) in limits {
        if value.is_some_and(|value| value < 0) {
            wrong(field, "must be greater than or equal to 0".to_owned());
        }
    }
    let annotations = cron.metadata.annotations.as_ref();
    job_spec(
        "spec.jobTemplate",
        &spec.job_template,
        annotations,
        &mut violations,
    );
    let cluster = super::job::first_cluster(&super::cron::first_job(cron));
    compiled("spec.jobTemplate.rayClusterSpec", &cluster, &mut violations);
    violations
}

/// What only the JobSet of a cluster shows: its annotations, and a gang that the groups have no pods for. `path` is that of the cluster's spec.
fn compiled(path: &str, cluster: &RayCluster, violations: &mut Vec<Violation>) {
    if !violations.is_empty() {
        return;
    }
    let wrong =
        crate::admission::validation::validate(&super::jobset::compile(cluster), &Features::default());
    violations.extend(wrong.into_iter().map(|violation| Violation {
        field: match violation.field.strip_prefix("spec") {
            Some(field) => format!("{path}{field}"),
            None => violation.field,
        },
        ..violation
    }));
}

/// What is wrong with the spec of a job, at `path`, whose object has these annotations.
fn job_spec(path: &str, spec: &RayJobSpec, annotations: Annotations<'_>, violations: &mut Vec<Violation>) {
    let mut wrong =
        |field: &str, message: &str| violations.push(Violation::new(format!("{path}.{field}"), message));
    match spec.submission_mode() {
        RayJobSubmissionMode::K8sJobMode | RayJobSubmissionMode::HTTPMode => {}
        mode => wrong(
            "submissionMode",
            &format!("{mode} is not supported; use K8sJobMode or HTTPMode"),
        ),
    }
    // It is a part of paths of Ray's API.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if !spec.job_id.chars().all(is_plain) || [".", ".."].contains(&spec.job_id.as_str()) {
        wrong(
            "jobId",
            "must consist of letters, digits, '-', '_' and '.', and not of '.' alone",
        );
    }
    if !spec.cluster_selector.is_empty() {
        wrong(
            "clusterSelector",
            "is not supported: a RayJob has a cluster of its own",
        );
    } else if spec.ray_cluster_spec.is_none() {
        wrong(
            "rayClusterSpec",
            "one of RayClusterSpec or ClusterSelector must be set",
        );
    }
    if spec.is_suspended() && !spec.shuts_down() {
        wrong(
            "suspend",
            "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended",
        );
    }
    let ttl = spec.ttl_seconds_after_finished.unwrap_or(0);
    if ttl < 0 {
        wrong(
            "ttlSecondsAfterFinished",
            "TTLSecondsAfterFinished must be a non-negative integer",
        );
    } else if ttl > 0 && !spec.shuts_down() {
        wrong(
            "ttlSecondsAfterFinished",
            "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished",
        );
    }
    for (field, value) in [
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("preRunningDeadlineSeconds", spec.pre_running_deadline_seconds),
    ] {
        if value.is_some_and(|seconds| seconds <= 0) {
            wrong(field, &format!("{field} must be a positive integer"));
        }
    }
    if let Some(strategy) = spec
        .other
        .0
        .get("deletionStrategy")
        .filter(|value| value.is_object())
    {
        for message in options::deletion(strategy, spec.shuts_down()) {
            wrong("deletionStrategy", &message);
        }
    }
    if spec.backoff_limit.is_some_and(|retries| retries > 0) {
        if !spec.cluster_selector.is_empty() {
            wrong(
                "backoffLimit",
                "BackoffLimit is incompatible with ClusterSelector mode",
            );
        }
        if spec.submission_mode() == RayJobSubmissionMode::InteractiveMode {
            wrong(
                "backoffLimit",
                "BackoffLimit is incompatible with InteractiveMode",
            );
        }
    }
    for (field, value) in [
        ("backoffLimit", spec.backoff_limit),
        ("maxRetries", spec.max_retries),
    ] {
        if value.is_some_and(|retries| retries < 0) {
            wrong(field, &format!("{field} must be a positive integer"));
        }
    }
    if spec.backoff_limit.unwrap_or(0) > 0
        && spec.max_retries.is_some()
        && spec.max_retries != spec.backoff_limit
    {
        wrong("maxRetries", "must be as backoffLimit says, where both are set");
    }
    if let Err(error) = super::submitter::stated_environment(spec) {
        wrong(
            "runtimeEnvYAML",
            &format!(
                "failed to unmarshal RuntimeEnvYAML: {}: {error}",
                text::beginning(&spec.runtime_env_yaml)
            ),
        );
    }
    let resources = &spec.entrypoint_resources;
    if !resources.is_empty() {
        match text::json(resources) {
            Err(error) => wrong("entrypointResources", &format!("must be JSON: {error}")),
            // Ray takes no other, however often it is asked.
            Ok(stated) if !stated.is_object() => wrong("entrypointResources", "must be a JSON object"),
            Ok(_) => {}
        }
    }
    // Who submits with a command of their own may say it there.
    let is_said_elsewhere =
        spec.submission_mode() == RayJobSubmissionMode::K8sJobMode && super::submitter::is_stated(spec);
    if spec.entrypoint.trim().is_empty() && !is_said_elsewhere {
        wrong("entrypoint", "must be set");
    }
    let submitter = spec.submitter_config.as_ref();
    if submitter
        .and_then(|config| config.backoff_limit)
        .is_some_and(|limit| limit < 0)
    {
        wrong(
            "submitterConfig.backoffLimit",
            "must be greater than or equal to 0",
        );
    }
    if let Some(template) = &spec.submitter_pod_template
        && template.spec.as_ref().is_none_or(|pod| pod.containers.is_empty())
    {
        wrong("submitterPodTemplate", "should have at least one container");
    }
    if let Some(template) = &spec.submitter_pod_template {
        let path = format!("{path}.submitterPodTemplate");
        pods::template(&path, template, violations);
    }
    let mut wrong =
        |field: &str, message: &str| violations.push(Violation::new(format!("{path}.{field}"), message));
    if let Some(cluster) = &spec.ray_cluster_spec {
        if cluster.is_suspended() {
            wrong(
                "rayClusterSpec.suspend",
                "is the RayJob's to say, by spec.suspend",
            );
        }
        let path = format!("{path}.rayClusterSpec");
        groups::validate(&path, cluster, annotations, violations);
        options::validate(&path, cluster, annotations, true, violations);
        pods::validate(&path, cluster, violations);
    }
}

/// A name that is a DNS label of at most so many characters.
pub(crate) fn name(kind: &str, name: &str, longest: usize, violations: &mut Vec<Violation>) {
    if name.len() > longest {
        let message = format!("{kind} name should be no more than {longest} characters");
        violations.push(Violation::with_value("metadata.name", name, message));
    }
    violations.extend(
        dns1035_label(name, "must be no more than 63 characters").map(|error| {
            Violation::with_value(
                "metadata.name",
                name,
                format!("{kind} name should be a valid DNS1035 label: {error}"),
            )
        }),
    );
}
