//! The rules that a JobSet must meet to be able to run.
//!
//! The messages are those of upstream's admission webhook, so that they are the same whether a
//! JobSet is refused at admission or, without webhooks, fails with
//! [`INVALID_JOBSET`](crate::common::violation::INVALID_JOBSET). Unlike upstream,
//! in-place JobSets may leave `backoffLimit` and `podReplacementPolicy` unset: they get their
//! defaults when the Jobs are created.

use std::collections::BTreeSet;

use lockstep_api::{JobSet, ReplicatedJob, naming};

use crate::common::features::Features;
use crate::common::syntax::{self, dns1035_label, label_value};
use crate::common::violation::{Kind, Violation, path};
use crate::jobset::limits::{self, MOST_REPLICATED_JOBS};

mod failure_policy;
pub(crate) mod gang;
pub(crate) mod in_place;
mod network;
mod order;
pub(crate) mod volume_claims;

#[cfg(test)]
mod tests;

/// All violations in one sentence, short enough for an event.
#[must_use]
pub fn message(violations: &[Violation]) -> String {
    // An event message has at most 1 KiB.
    const LONGEST: usize = 1000;
    let mut message = String::from("jobset is invalid: ");
    for (index, violation) in violations.iter().enumerate() {
        let next = format!("{}{violation}", if index == 0 { "" } else { "; " });
        if message.len() + next.len() > LONGEST {
            // Only the first may be long, since it shows the user's value.
            if index == 0 {
                message.push_str(&next[..next.floor_char_boundary(LONGEST - message.len())]);
                message.push_str("...");
            }
            let left = violations.len() - index.max(1);
            if left > 0 {
                message.push_str(&format!("; and {left} more"));
            }
            break;
        }
        message.push_str(&next);
    }
    message
}

/// Everything that is wrong with a JobSet as it was created.
#[must_use]
pub fn validate(jobset: &JobSet, features: &Features) -> Vec<Violation> {
    // A JobSet that exceeds the limit is not checked further.
    if jobset.spec.replicated_jobs.len() > MOST_REPLICATED_JOBS {
        return limits::violation(jobset).into_iter().collect();
    }
    let mut violations = Vec::new();
    network::subdomain(jobset, &mut violations);
    managed_by(jobset, &mut violations);
    sizes(jobset, &mut violations);
    negative_numbers(jobset, &mut violations);
    replicated_jobs(jobset, &mut violations);
    order::execution_policy(jobset, features, &mut violations);
    success_policy(jobset, &mut violations);
    failure_policy::validate(jobset, features, &mut violations);
    network::coordinator(jobset, &mut violations);
    in_place::validate(jobset, features, &mut violations);
    volume_claims::validate(jobset, &mut violations);
    gang::validate(jobset, &mut violations);
    violations
}

/// `spec.managedBy` is a domain-prefixed path.
fn managed_by(jobset: &JobSet, violations: &mut Vec<Violation>) {
    const FIELD: &str = "spec.managedBy";
    const LONGEST: usize = 63;
    let Some(manager) = jobset.spec.managed_by.as_deref() else {
        return;
    };
    match manager.split_once('/') {
        _ if manager.is_empty() => {
            violations.push(Violation::new(FIELD, "Required value").of(Kind::Required))
        }
        None | Some(("", _) | (_, "")) => violations.push(Violation::with_value(
            FIELD,
            manager,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )),
        Some((domain, path)) => {
            violations.extend(
                syntax::dns1123_subdomain(domain).map(|error| Violation::with_value(FIELD, domain, error)),
            );
            if !syntax::is_http_path(path) {
                violations.push(Violation::with_value(
                    FIELD,
                    path,
                    "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ));
            }
        }
    }
    if manager.len() > LONGEST {
        let message = format!("Too long: may not be more than {LONGEST} bytes");
        violations.push(Violation::new(FIELD, message).of(Kind::TooLong));
    }
}

fn replicated_jobs(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let mut earlier = BTreeSet::new();
    for (index, replicated_job) in jobset.spec.replicated_jobs.iter().enumerate() {
        names(jobset, index, replicated_job, violations);
        order::depends_on(index, replicated_job, &earlier, violations);
        if !earlier.insert(replicated_job.name.as_str()) {
            let name = &replicated_job.name;
            violations.push(Violation::with_value(
                path(index, ".name"),
                name,
                "must be unique within replicatedJobs",
            ));
        }
    }
}

/// Upstream's limit applies to each replicatedJob. It is checked first, with upstream's message.
fn sizes(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let before = violations.len();
    for (index, replicated_job) in jobset.spec.replicated_jobs.iter().enumerate() {
        size(index, replicated_job, violations);
    }
    if violations.len() == before {
        violations.extend(limits::violation(jobset));
    }
}

fn size(index: usize, replicated_job: &ReplicatedJob, violations: &mut Vec<Violation>) {
    let parallelism = replicated_job
        .template
        .spec
        .as_ref()
        .and_then(|spec| spec.parallelism)
        .unwrap_or(1);
    if i64::from(parallelism) * i64::from(replicated_job.replicas()) > i64::from(i32::MAX) {
        violations.push(Violation::internal(
            path(index, ".replicas"),
            format!(
                "the product of replicas and parallelism must not exceed {} for replicatedJob '{}'",
                i32::MAX,
                replicated_job.name
            ),
        ));
    }
}

/// Numbers with which the API server would refuse every Job.
fn negative_numbers(jobset: &JobSet, violations: &mut Vec<Violation>) {
    for (index, replicated_job) in jobset.spec.replicated_jobs.iter().enumerate() {
        let Some(spec) = &replicated_job.template.spec else {
            continue;
        };
        let numbers = [
            ("parallelism", spec.parallelism.map(i64::from)),
            ("completions", spec.completions.map(i64::from)),
            ("backoffLimit", spec.backoff_limit.map(i64::from)),
            (
                "backoffLimitPerIndex",
                spec.backoff_limit_per_index.map(i64::from),
            ),
            ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
            ("activeDeadlineSeconds", spec.active_deadline_seconds),
            (
                "ttlSecondsAfterFinished",
                spec.ttl_seconds_after_finished.map(i64::from),
            ),
        ];
        for (name, number) in numbers {
            if let Some(number) = number.filter(|number| *number < 0) {
                let field = path(index, &format!(".template.spec.{name}"));
                violations.push(Violation::with_value(
                    field,
                    number,
                    "must be greater than or equal to 0",
                ));
            }
        }
    }
}

/// Group names that are set to the empty string. A JobSet that bypassed the webhooks with one runs
/// as if in the default group.
pub(crate) fn nameless_groups(jobset: &JobSet) -> impl Iterator<Item = Violation> {
    let jobs = jobset.spec.replicated_jobs.iter().enumerate();
    jobs.filter(|(_, job)| job.group_name.as_deref() == Some(""))
        .flat_map(|(index, _)| group_name(index, ""))
}

/// Templates without a pod. The schema accepts them, but the API server refuses Jobs that are
/// created from them.
pub(crate) fn without_pods(jobset: &JobSet) -> impl Iterator<Item = Violation> {
    let jobs = jobset.spec.replicated_jobs.iter().enumerate();
    let has_pod = |job: &ReplicatedJob| {
        let spec = job.template.spec.as_ref();
        spec.is_some_and(|spec| spec.template.spec.is_some())
    };
    jobs.filter(move |(_, job)| !has_pod(job)).map(|(index, _)| {
        let field = path(index, ".template.spec.template.spec.containers");
        Violation::new(field, "Required value").of(Kind::Required)
    })
}

fn group_name(index: usize, group: &str) -> impl Iterator<Item = Violation> {
    let too_long = ".spec.replicatedJob[].groupName is too long, must be less than 63 characters";
    // It becomes a label of Jobs and pods.
    let can_be_label = label_value(group).is_empty();
    dns1035_label(group, too_long).map(move |error| {
        Violation::with_value(path(index, ".groupName"), group, error).harmless_if(can_be_label)
    })
}

/// True if a Job can have this name, which is also a label of its pods.
fn is_job_name(name: &str) -> bool {
    syntax::dns1123_subdomain(name).next().is_none() && label_value(name).is_empty()
}

/// True if a pod of an Indexed Job can have this host name. Otherwise the API server refuses the
/// Job.
fn is_hostname(name: &str) -> bool {
    is_job_name(name) && !name.contains('.')
}

fn names(jobset: &JobSet, index: usize, replicated_job: &ReplicatedJob, violations: &mut Vec<Violation>) {
    violations.extend(group_name(index, replicated_job.group_name()));
    // The highest index has the longest name.
    let job = jobset.job_name(&replicated_job.name, i64::from(replicated_job.replicas()) - 1);
    let too_long = "JobSet name is too long, job names generated for this JobSet will exceed 63 characters";
    let spec = replicated_job.template.spec.as_ref();
    let indexed = spec
        .and_then(|spec| spec.completion_mode.as_deref())
        .is_none_or(|mode| mode == "Indexed");
    let completions = spec.and_then(|spec| spec.completions).filter(|_| indexed);
    let last_hostname =
        |completions: i32| naming::pod_hostname(&job, i64::from(completions).saturating_sub(1).max(0));
    // The API server accepts more names for a Job than for a Service, and newer versions accept
    // Service names that begin with a digit.
    let service_can_be = !jobset.dns_hostnames() || is_hostname(jobset.subdomain());
    let hosts_can_be = !indexed || is_hostname(&last_hostname(completions.unwrap_or(1)));
    let can_be = service_can_be && is_job_name(&job) && hosts_can_be;
    violations.extend(
        dns1035_label(&job, too_long)
            .map(|error| Violation::with_value(path(index, ".name"), &job, error).harmless_if(can_be)),
    );
    if let Some(completions) = completions {
        // The Job controller appends five random characters.
        let hostname = naming::pod_hostname(&job, i64::from(completions) - 1);
        // It shortens the part before them, but not a host name.
        let can_be = can_be || dns1035_label(&hostname, "").next().is_none();
        let pod = format!("{hostname}-abcde");
        let too_long =
            "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters";
        violations.extend(
            dns1035_label(&pod, too_long)
                .map(|error| Violation::with_value(path(index, ".name"), &job, error).harmless_if(can_be)),
        );
    }
}

fn success_policy(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let policy = jobset.spec.success_policy.iter();
    let targets = policy.flat_map(|policy| &policy.target_replicated_jobs);
    // Without any valid target it would succeed with its first Job, or never.
    let has_others = targets
        .clone()
        .any(|target| jobset.replicated_job(target).is_some());
    violations.extend(
        targets
            .filter(|target| jobset.replicated_job(target).is_none())
            .map(|target| {
                Violation::internal(
                    "spec.successPolicy.targetReplicatedJobs",
                    format!("invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"),
                )
                .harmless_if(has_others)
            }),
    );
}
