//! Validation of a RayJob's spec.

use lockstep_api::ray::{RayJobSpec, RayJobSubmissionMode};

use super::ignored_fields::Annotations;
use super::{groups, ignored_fields, pods};
use crate::common::violation::Violation;
use crate::ray::{submitter, text};

/// Adds the faults of the job spec at `path`. `annotations` are those of its object.
pub(super) fn spec(
    path: &str,
    spec: &RayJobSpec,
    annotations: Annotations<'_>,
    violations: &mut Vec<Violation>,
) {
    let mut wrong =
        |field: &str, message: &str| violations.push(Violation::new(format!("{path}.{field}"), message));
    identity(spec, &mut wrong);
    times(spec, &mut wrong);
    deletion(spec, &mut wrong);
    retries(spec, &mut wrong);
    entrypoint(spec, &mut wrong);
    submitter_config(spec, &mut wrong);
    if let Some(template) = &spec.submitter_pod_template {
        let path = format!("{path}.submitterPodTemplate");
        pods::template(&path, template, violations);
    }
    if let Some(cluster) = &spec.ray_cluster_spec {
        if cluster.is_suspended() {
            violations.push(Violation::new(
                format!("{path}.rayClusterSpec.suspend"),
                "must not be set: use spec.suspend of the RayJob",
            ));
        }
        let path = format!("{path}.rayClusterSpec");
        groups::validate(&path, cluster, annotations, violations);
        ignored_fields::validate(
            &path,
            cluster,
            annotations,
            ignored_fields::CreatedBy::RayJob,
            violations,
        );
        pods::validate(&path, cluster, violations);
    }
}

/// Checks the submission mode, the job's id and its cluster.
/// Longest id of a job, in bytes, as that of a name in Kubernetes: it is in paths, logs and the
/// status.
const LONGEST_ID: usize = 253;

fn identity(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
    match spec.submission_mode() {
        RayJobSubmissionMode::K8sJobMode | RayJobSubmissionMode::HTTPMode => {}
        mode => wrong(
            "submissionMode",
            &format!("{mode} is not supported; use K8sJobMode or HTTPMode"),
        ),
    }
    // The id is a part of paths of Ray's API.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if spec.job_id.len() > LONGEST_ID
        || !spec.job_id.chars().all(is_plain)
        || [".", ".."].contains(&spec.job_id.as_str())
    {
        wrong(
            "jobId",
            "must consist of at most 253 letters, digits, '-', '_' and '.', and must not be '.' or '..'",
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
}

fn times(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
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
}

fn deletion(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
    if let Some(strategy) = spec
        .other
        .0
        .get("deletionStrategy")
        .filter(|value| value.is_object())
    {
        for message in ignored_fields::deletion(strategy, spec.shuts_down()) {
            wrong("deletionStrategy", &message);
        }
    }
}

fn retries(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
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
        wrong("maxRetries", "must equal backoffLimit if both are set");
    }
}

/// Checks the entrypoint, its environment and its resources.
fn entrypoint(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
    if let Err(error) = submitter::stated_environment(spec) {
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
            // Ray would refuse anything else at each attempt.
            Ok(stated) if !stated.is_object() => wrong("entrypointResources", "must be a JSON object"),
            Ok(_) => {}
        }
    }
    // A submitter with its own command may have the entrypoint there.
    let is_said_elsewhere =
        spec.submission_mode() == RayJobSubmissionMode::K8sJobMode && submitter::has_own_command(spec);
    if spec.entrypoint.trim().is_empty() && !is_said_elsewhere {
        wrong("entrypoint", "must be set");
    }
}

fn submitter_config(spec: &RayJobSpec, wrong: &mut impl FnMut(&str, &str)) {
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
}
