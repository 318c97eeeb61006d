//! ElasticJobSet (KEP-463): Indexed Jobs that run follow a change of parallelism and completions in the JobSet.

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, labels};

use crate::{
    children::{Children, label},
    plan::{Change, JobChange, JobRef},
};

#[cfg(test)]
mod tests;

/// The Jobs to scale. A replicatedJob whose parallelism and completions are not the same number is left alone.
pub(crate) fn changes(jobset: &JobSet, children: &Children<'_>) -> Vec<JobChange> {
    let active = children.active.iter();
    active
        .filter(|job| job.metadata.deletion_timestamp.is_none())
        .filter_map(|job| {
            Some(JobChange {
                job: JobRef::of(job),
                change: Change::Scale(wanted(jobset, job)?),
            })
        })
        .collect()
}

/// The number of pods that a Job should have and has not.
fn wanted(jobset: &JobSet, job: &Job) -> Option<i32> {
    let replicated_job = jobset.replicated_job(label(job, labels::REPLICATED_JOB_NAME)?)?;
    let template = replicated_job.template.spec.as_ref()?;
    let pods = template.parallelism?;
    if template.completions != Some(pods) {
        return None;
    }
    let has = job.spec.as_ref()?;
    let indexed = has.completion_mode.as_deref() == Some("Indexed");
    let scaled = has.parallelism == Some(pods) && has.completions == Some(pods);
    (indexed && !scaled).then_some(pods)
}
