//! Validation of Ray's resources, with KubeRay's limits. Messages name the field.

mod groups;
mod ignored_fields;
mod job;
mod pods;
pub(super) mod protection;

use lockstep_api::ray::{ConcurrencyPolicy, RayCluster, RayCronJob, RayJob};

use super::cron::Schedule;
use crate::common::features::Features;
use crate::common::syntax::dns1035_label;
use crate::common::violation::Violation;

pub(crate) use ignored_fields::unsupported_annotation;

/// Longest name of a RayJob.
const LONGEST_JOB_NAME: usize = 47;
/// Longest name of a RayCronJob: its jobs append the minutes since 1970, for which KubeRay reserves
/// ten digits.
const LONGEST_CRON_NAME: usize = LONGEST_JOB_NAME - "-1234567890".len();
/// Longest name of a RayCluster.
const LONGEST_CLUSTER_NAME: usize = 53;

/// All faults of a RayCluster.
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
    ignored_fields::validate(
        "spec",
        &cluster.spec,
        annotations,
        ignored_fields::CreatedBy::User,
        &mut violations,
    );
    pods::validate("spec", &cluster.spec, &mut violations);
    compiled("spec", cluster, &mut violations);
    violations
}

/// All faults of a RayJob.
#[must_use]
pub fn job(job: &RayJob) -> Vec<Violation> {
    let mut violations = Vec::new();
    name("RayJob", job.name(), LONGEST_JOB_NAME, &mut violations);
    let annotations = job.metadata.annotations.as_ref();
    job::spec("spec", &job.spec, annotations, &mut violations);
    compiled(
        "spec.rayClusterSpec",
        &super::job::first_cluster(job),
        &mut violations,
    );
    violations
}

/// All faults of a RayCronJob.
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
    job::spec(
        "spec.jobTemplate",
        &spec.job_template,
        annotations,
        &mut violations,
    );
    let cluster = super::job::first_cluster(&super::cron::first_job(cron));
    compiled("spec.jobTemplate.rayClusterSpec", &cluster, &mut violations);
    violations
}

/// Faults that only the compiled JobSet shows: in annotations, and a gang that is larger than its
/// groups. `path` leads to the cluster's spec.
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

/// Checks that a name is a DNS label of at most `longest` characters.
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
