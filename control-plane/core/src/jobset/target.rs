//! Which workers of a JobSet a request to restart single workers names.

use lockstep_api::{JobSet, ReplicatedJob, Target};

use crate::jobset::in_place;

#[cfg(test)]
mod tests;

/// The JobSet has no such workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoWorkers {
    /// The part of the target that names nothing: `replicated_job`, `job`, `worker.job`,
    /// `worker.completion_index` or `worker.container`.
    pub field: &'static str,
    /// What the JobSet does not have.
    pub what: String,
}

/// The replicatedJob of these workers.
///
/// # Errors
/// [`NoWorkers`] if the JobSet has no such workers.
pub fn find<'j>(target: &Target, jobset: &'j JobSet) -> Result<&'j ReplicatedJob, NoWorkers> {
    let none = |field, what| NoWorkers { field, what };
    match target {
        Target::ReplicatedJob(name) => jobset
            .replicated_job(name)
            .ok_or_else(|| none("replicated_job", format!("replicatedJob {name}"))),
        Target::Job(name) => of_job(name, jobset).ok_or_else(|| none("job", format!("Job {name}"))),
        Target::Worker {
            job,
            index,
            container,
        } => {
            let found = of_job(job, jobset).ok_or_else(|| none("worker.job", format!("Job {job}")))?;
            let spec = found.template.spec.as_ref();
            let width = spec
                .and_then(|spec| spec.completions.or(spec.parallelism))
                .unwrap_or(1);
            if i64::from(*index) >= i64::from(width) {
                let what = format!("worker {index} in Job {job}, but {width}");
                return Err(none("worker.completion_index", what));
            }
            let containers = spec.map(|spec| in_place::workers(jobset, &spec.template));
            let has = |container: &String| {
                containers
                    .as_ref()
                    .is_some_and(|containers| containers.contains(&container.as_str()))
            };
            match container {
                Some(container) if !has(container) => {
                    let what = format!("worker in a container {container} of Job {job}");
                    Err(none("worker.container", what))
                }
                _ => Ok(found),
            }
        }
    }
}

/// The replicatedJob that has a Job of this name.
fn of_job<'j>(job: &str, jobset: &'j JobSet) -> Option<&'j ReplicatedJob> {
    let (_, index) = job.rsplit_once('-')?;
    let index: i64 = index.parse().ok()?;
    let mut all = jobset.spec.replicated_jobs.iter();
    all.find(|replicated_job| {
        (0..i64::from(replicated_job.replicas())).contains(&index)
            && jobset.job_name(&replicated_job.name, index) == job
    })
}
