//! What `spec.gang` means: which replicatedJobs form a gang, and with how many pods.

use lockstep_api::JobSet;

/// True if the replicatedJobs of a JobSet start one after another, so that each is a gang of its
/// own.
#[must_use]
pub fn dependent(jobset: &JobSet) -> bool {
    jobset.executes_in_order().is_some()
        || jobset.starts_in_order()
        || jobset
            .spec
            .replicated_jobs
            .iter()
            .any(|job| !job.depends_on.is_empty())
}

/// Name of the gang that a replicatedJob belongs to: its own where it starts by itself, else that
/// of the first one.
#[must_use]
pub fn gang_name<'a>(jobset: &'a JobSet, replicated_job: &'a str) -> &'a str {
    let first = jobset.spec.replicated_jobs.first();
    match first {
        Some(first) if !dependent(jobset) => &first.name,
        _ => replicated_job,
    }
}
