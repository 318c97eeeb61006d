//! ElasticJobSet (KEP-463): running Indexed Jobs follow changes of parallelism and completions in
//! the JobSet.
//!
//! JobSets of RayClusters are elastic whatever the feature gate says. They may have a replicatedJob
//! without Jobs: a worker group without workers at the moment.

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, labels, ray};

use crate::{
    common::features::Features,
    jobset::children::{Children, job_index, label},
    jobset::owner::controller_of,
    jobset::plan::{Change, JobChange, JobRef},
};

#[cfg(test)]
mod tests;

/// True if the JobSet's numbers of pods may change.
pub(crate) fn is_elastic(jobset: &JobSet, features: &Features) -> bool {
    features.elastic_jobset || is_of_ray_cluster(jobset)
}

/// True if the JobSet was made for a RayCluster.
pub(crate) fn is_of_ray_cluster(jobset: &JobSet) -> bool {
    controller_of(&jobset.metadata).is_some_and(|owner| {
        owner.kind == "RayCluster"
            && owner
                .api_version
                .split_once('/')
                .is_some_and(|(group, _)| group == ray::GROUP)
    })
}

/// The Jobs that the JobSet of a RayCluster no longer needs.
pub(crate) fn surplus(jobset: &JobSet, children: &Children<'_>) -> Vec<JobRef> {
    let is_surplus = |job: &&&Job| {
        let replicated_job =
            label(job, labels::REPLICATED_JOB_NAME).and_then(|name| jobset.replicated_job(name));
        let replicas = replicated_job.map(|job| usize::try_from(job.replicas()).unwrap_or(0));
        job_index(job)
            .zip(replicas)
            .is_some_and(|(index, replicas)| index >= replicas)
    };
    let active = children.active.iter().filter(|_| is_of_ray_cluster(jobset));
    active
        .filter(|job| job.metadata.deletion_timestamp.is_none())
        .filter(is_surplus)
        .map(|job| JobRef::of(job))
        .collect()
}

/// The Jobs to scale. A replicatedJob whose parallelism and completions are not the same number is
/// left unchanged.
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

/// The number of pods that a Job should have; `None` if it has them already, or is not to be
/// scaled.
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
