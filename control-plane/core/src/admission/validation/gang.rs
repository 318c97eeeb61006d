//! The minimum of a JobSet and those of its replicatedJobs, which must agree.
//!
//! - If `spec.gang.minAvailable` is not set, it is the sum of the replicatedJobs' minimums.
//! - If it is set and some minimums of replicatedJobs are too, it must be that sum.
//! - If only it is set, it is the minimum of a single replicatedJob. With several replicatedJobs it
//!   must be the number of all pods.
//!
//! The minimum of a replicatedJob defaults to the number of its pods.

use std::collections::BTreeSet;

use lockstep_api::{Gang, GangBackend, JobSet};

use super::Violation;

const FIELD: &str = "spec.gang";

/// What is wrong with the gang of a JobSet.
pub(crate) fn validate(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let Some(gang) = &jobset.spec.gang else {
        return;
    };
    if let Some(GangBackend::Other(backend)) = &gang.backend {
        violations.push(Violation::with_value(
            format!("{FIELD}.backend"),
            backend,
            format!("must be one of {}", GangBackend::VALUES.join(", ")),
        ));
    }
    if let Some(seconds) = gang.schedule_timeout_seconds.filter(|seconds| *seconds < 1) {
        violations.push(Violation::with_value(
            format!("{FIELD}.scheduleTimeoutSeconds"),
            seconds,
            "must be greater than 0",
        ));
    }
    let before = violations.len();
    replicated_jobs(jobset, gang, violations);
    if violations.len() == before {
        min_available(jobset, gang, violations);
    }
}

fn replicated_jobs(jobset: &JobSet, gang: &Gang, violations: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for (index, entry) in gang.replicated_jobs.iter().enumerate() {
        let field = |name: &str| format!("{FIELD}.replicatedJobs[{index}].{name}");
        if !seen.insert(entry.name.as_str()) {
            violations.push(Violation::with_value(
                field("name"),
                &entry.name,
                "must be unique within gang.replicatedJobs",
            ));
        }
        let Some(replicated_job) = jobset.replicated_job(&entry.name) else {
            violations.push(Violation::with_value(
                field("name"),
                &entry.name,
                "must be the name of a replicatedJob",
            ));
            continue;
        };
        let (minimum, pods) = (entry.min_available, replicated_job.pods());
        if minimum < 1 || minimum > pods {
            violations.push(Violation::with_value(
                field("minAvailable"),
                minimum,
                format!(
                    "must be greater than 0 and not more than {pods}, the pods (replicas x parallelism) of replicatedJob \
                     {}",
                    entry.name
                ),
            ));
        }
    }
}

fn min_available(jobset: &JobSet, gang: &Gang, violations: &mut Vec<Violation>) {
    let Some(minimum) = gang.min_available else {
        return;
    };
    let all = &jobset.spec.replicated_jobs;
    let pods: i64 = all.iter().map(|job| i64::from(job.pods())).sum();
    let stated = |name: &str| gang.listed(name);
    let sum: i64 = all
        .iter()
        .map(|job| i64::from(stated(&job.name).unwrap_or_else(|| job.pods())))
        .sum();
    let minimum_of_all = i64::from(minimum);
    let message = if minimum_of_all < 1 || minimum_of_all > pods {
        format!("must be greater than 0 and not more than {pods}, the pods of all replicatedJobs")
    } else if gang.replicated_jobs.is_empty() && all.len() == 1 {
        return;
    } else if gang.replicated_jobs.is_empty() && minimum_of_all != pods {
        format!(
            "must be {pods}, the pods of all {} replicatedJobs, unless {FIELD}.replicatedJobs states their minAvailable",
            all.len()
        )
    } else if minimum_of_all != sum {
        format!(
            "must be {sum}, the sum of {FIELD}.replicatedJobs[].minAvailable (a replicatedJob that is not listed counts with all its pods)"
        )
    } else {
        return;
    };
    violations.push(Violation::with_value(
        format!("{FIELD}.minAvailable"),
        minimum,
        message,
    ));
}
