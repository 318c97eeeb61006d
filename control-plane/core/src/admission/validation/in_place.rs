//! The requirements of in-place restarts, and the annotations that tune them.

use std::fmt::Display;

use k8s_openapi::api::batch::v1::JobSpec;
use lockstep_api::{
    JobSet, ReplicatedJob, RestartStrategy,
    annotations::{self, AnnotationError, RestartScope, Supervise},
};

use super::{Violation, path};
use crate::common::features::Features;
use crate::jobset::jobs::{IN_PLACE_BACKOFF_LIMIT, IN_PLACE_POD_REPLACEMENT_POLICY};

/// The most listed containers that are looked up in pod templates. Nobody writes a longer list by
/// hand.
const NAMED: usize = 100;

pub(super) fn validate(jobset: &JobSet, features: &Features, violations: &mut Vec<Violation>) {
    if !features.in_place_restart && jobset.restart_strategy() == RestartStrategy::InPlaceRestart {
        violations.push(Violation::internal(
            "spec.failurePolicy.restartStrategy",
            "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is disabled",
        ));
    }
    violations.extend(jobs(jobset, features));
    violations.extend(annotations(jobset, features));
}

/// What is wrong with the Jobs of a JobSet that restarts in place, or with their restart scope if
/// it does not. Adding or removing an annotation can make existing Jobs invalid.
pub(crate) fn jobs(jobset: &JobSet, features: &Features) -> Vec<Violation> {
    let mut violations = Vec::new();
    let in_place = features.in_place_restart && jobset.in_place();
    for (index, replicated_job) in jobset.spec.replicated_jobs.iter().enumerate() {
        violations.extend(scope(jobset, index, replicated_job));
        if in_place {
            job(index, replicated_job, &mut violations);
        }
    }
    violations
}

/// What is wrong with the annotations that tune in-place restarts. A JobSet can run without any of
/// them.
pub(crate) fn annotations(jobset: &JobSet, features: &Features) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !features.in_place_restart || !jobset.in_place() {
        return violations;
    }
    violations.extend(
        jobset
            .in_place_timeout()
            .err()
            .map(|error| annotation(annotations::IN_PLACE_TIMEOUT, &error)),
    );
    violations.extend(
        jobset
            .restart_grace()
            .err()
            .map(|error| annotation(annotations::RESTART_GRACE, &error)),
    );
    violations.extend(
        jobset
            .max_backoff()
            .err()
            .map(|error| annotation(annotations::MAX_BACKOFF, &error)),
    );
    violations.extend(
        jobset
            .heartbeat_timeout()
            .err()
            .map(|error| annotation(annotations::HEARTBEAT_TIMEOUT, &error)),
    );
    violations.extend(
        jobset
            .ready_timeout()
            .err()
            .map(|error| annotation(annotations::READY_TIMEOUT, &error)),
    );
    violations.extend(
        jobset
            .escalate_after()
            .err()
            .map(|error| annotation(annotations::ESCALATE_AFTER, &error)),
    );
    violations.extend(
        jobset
            .restart_request()
            .err()
            .map(|error| annotation(annotations::RESTART_REQUEST, &error)),
    );
    violations.extend(
        jobset
            .worker_restart_request()
            .err()
            .map(|error| annotation(annotations::RESTART_WORKERS, &error)),
    );
    violations.extend(
        jobset
            .standby()
            .err()
            .map(|error| annotation(annotations::STANDBY, &error)),
    );
    for (index, replicated_job) in jobset.spec.replicated_jobs.iter().enumerate() {
        if let Err(error) = replicated_job.standby() {
            let field = template_path(index, annotations::STANDBY);
            violations.push(Violation::new(field, error.to_string()));
        }
    }
    match jobset.supervise() {
        Err(error) => violations.push(annotation(annotations::SUPERVISE, &error)),
        Ok(Some(Supervise::Containers(listed))) => supervised(jobset, &listed, &mut violations),
        Ok(Some(Supervise::Nothing) | None) => {}
    }
    violations
}

fn annotation_path(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

/// An annotation of a Job template.
fn template_path(index: usize, key: &str) -> String {
    path(index, &format!(".template.metadata.annotations[{key}]"))
}

fn annotation(key: &str, error: &AnnotationError) -> Violation {
    Violation::new(annotation_path(key), error.to_string())
}

/// The restart scope "worker" needs in-place restarts.
fn scope(jobset: &JobSet, index: usize, replicated_job: &ReplicatedJob) -> Option<Violation> {
    let key = annotations::RESTART_SCOPE;
    let what = match replicated_job.restart_scope() {
        Err(error) => error.to_string(),
        Ok(RestartScope::Worker) if !jobset.in_place() => {
            format!("annotation {key}: \"worker\" needs the restart strategy InPlaceRestart")
        }
        Ok(_) => return None,
    };
    Some(Violation::new(template_path(index, key), what))
}

fn job(index: usize, replicated_job: &ReplicatedJob, violations: &mut Vec<Violation>) {
    let name = &replicated_job.name;
    let unset = JobSpec::default();
    let spec = replicated_job.template.spec.as_ref().unwrap_or(&unset);
    if let Some(limit) = spec.backoff_limit
        && limit != IN_PLACE_BACKOFF_LIMIT
    {
        violations.push(Violation::with_value(
            path(index, ".template.spec.backoffLimit"),
            limit,
            format!(
                "replicatedJob {name}: must be set to {IN_PLACE_BACKOFF_LIMIT} (MaxInt32) when in-place restart is enabled: {}",
                line_to_remove(index, "backoffLimit", limit)
            ),
        ));
    }
    if let Some(policy) = &spec.pod_replacement_policy
        && policy != IN_PLACE_POD_REPLACEMENT_POLICY
    {
        violations.push(Violation::with_value(
            path(index, ".template.spec.podReplacementPolicy"),
            policy,
            format!(
                "replicatedJob {name}: must be set to {IN_PLACE_POD_REPLACEMENT_POLICY} when in-place restart is enabled: {}",
                line_to_remove(index, "podReplacementPolicy", "...")
            ),
        ));
    }
    if spec.completions.is_none() || spec.completions != spec.parallelism {
        violations.push(Violation::with_value(
            path(index, ".template.spec.completions"),
            Shown(spec.completions),
            format!(
                "replicatedJob {name}: completions and parallelism must be set and equal to each other when in-place restart is \
                 enabled"
            ),
        ));
    }
}

/// The line of the manifest to remove. The field then gets the required value by default.
fn line_to_remove(index: usize, field: &str, value: impl Display) -> String {
    let below = path(index, ".template.spec");
    format!("remove the line \"{field}: {value}\" from {below} to use the default")
}

/// An optional number, as Kubernetes shows it.
struct Shown(Option<i32>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("null"),
        }
    }
}

/// Only regular containers can be supervised. A name that none has is a typo.
fn supervised(jobset: &JobSet, listed: &[String], violations: &mut Vec<Violation>) {
    let pods = || {
        jobset
            .spec
            .replicated_jobs
            .iter()
            .filter_map(|job| job.template.spec.as_ref()?.template.spec.as_ref())
    };
    for name in listed.iter().take(NAMED) {
        if !pods().any(|pod| pod.containers.iter().any(|container| container.name == *name)) {
            violations.push(Violation::new(
                annotation_path(annotations::SUPERVISE),
                format!("no pod template has a regular container named '{name}'"),
            ));
        }
    }
}
