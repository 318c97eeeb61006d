//! Numbers of workers that change while the cluster runs.

use lockstep_api::{JobSet, ReplicatedJob};

/// The running JobSet with the numbers of pods that are asked for; `None`: it has them. What else
/// differs stays as it runs.
pub(crate) fn scaled(running: &JobSet, wanted: &JobSet) -> Option<JobSet> {
    let mut scaled = running.clone();
    for job in &mut scaled.spec.replicated_jobs {
        let Some(wanted) = wanted.replicated_job(&job.name) else {
            continue;
        };
        if job.pods() != wanted.pods() {
            scale(job, wanted.pods());
        }
    }
    (scaled.spec != running.spec).then_some(scaled)
}

fn scale(job: &mut ReplicatedJob, pods: i32) {
    job.replicas = Some(i32::from(pods > 0));
    if let Some(spec) = job.template.spec.as_mut().filter(|_| pods > 0) {
        spec.parallelism = Some(pods);
        spec.completions = Some(pods);
    }
}
