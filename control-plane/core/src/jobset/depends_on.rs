//! `replicatedJobs[].dependsOn` as gates of the start-up graph.

use lockstep_api::{DependsOnStatus, JobSet, ReplicatedJob};

use crate::jobset::gate::{Gate, Milestone};

#[cfg(test)]
mod tests;

/// What a replicatedJob waits for. A status or a replicatedJob that does not exist never lets it
/// start; validation refuses both.
pub(crate) fn gates<'a>(jobset: &'a JobSet, replicated_job: &'a ReplicatedJob) -> Vec<Gate<'a>> {
    let dependencies = replicated_job.depends_on.iter();
    dependencies
        .map(|dependency| {
            let (known, until) = match dependency.status {
                DependsOnStatus::Ready => (true, Milestone::Ready),
                DependsOnStatus::Complete => (true, Milestone::Complete),
                DependsOnStatus::Other(_) => (false, Milestone::Complete),
            };
            let on = jobset.replicated_job(&dependency.name).filter(|_| known);
            Gate {
                on,
                until,
                holds_while_suspended: true,
            }
        })
        .collect()
}
