//! The Jobs that are missing, a batch at each look.
//!
//! Promises: what is built is bounded, however many Jobs are asked for; where more are missing the
//! JobSet is looked at again at once. The order is that of the graph, as if all were built
//! together: a replicatedJob that waits for another one waits for all of its Jobs.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{GangPhase, ReplicatedJobStatus, RestartStrategy};

use super::pod_groups;
use crate::{
    children::Children,
    gang,
    jobset::Jobs,
    limits::{BYTES_AT_ONCE, JOBS_AT_ONCE},
    observed::Observed,
    plan::Plan,
    startup::Graph,
    status::Draft,
};

/// Puts the next missing Jobs into the plan.
pub(super) fn jobs(
    observed: &Observed,
    graph: &Graph<'_>,
    children: &Children<'_>,
    reached: &[ReplicatedJobStatus],
    stopped: &BTreeSet<String>,
    draft: &Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    let waits_for_all =
        jobset.restart_strategy() == RestartStrategy::BlockingRecreate && !children.previous.is_empty();
    if waits_for_all {
        return;
    }
    let mut jobs = Jobs::new(jobset, observed.features, &observed.agents);
    if !observed.has_daemons {
        jobs = jobs.without_daemons();
    }
    let mut batch = Batch::default();
    for stage in graph
        .stages
        .iter()
        .filter(|stage| stage.may_be_created(jobset.is_suspended(), reached))
        .filter(|stage| !stopped.contains(gang::gang_name(jobset, &stage.replicated_job.name)))
    {
        let backs_off =
            gang::phase(jobset, draft, &stage.replicated_job.name) == Some(&GangPhase::BackingOff);
        jobs = jobs.with_pod_groups(pod_groups(observed, children, stage.replicated_job));
        let mut size = None;
        for index in 0..stage.replicated_job.replicas() {
            let name = jobset.job_name(&stage.replicated_job.name, i64::from(index));
            if children.taken.contains(name.as_str()) {
                continue;
            }
            if batch.is_full(size) {
                plan.requeue_after = Some(SignedDuration::ZERO);
                return;
            }
            let mut job = jobs.make(stage.replicated_job, index);
            if backs_off {
                job.spec.get_or_insert_default().suspend = Some(true);
            }
            // Those of a replicatedJob differ in nothing but numbers.
            batch.add(*size.get_or_insert_with(|| length(&job)));
            plan.create_jobs.push(job);
        }
    }
}

/// What has been built at this look.
#[derive(Default)]
struct Batch {
    jobs: usize,
    bytes: usize,
}

impl Batch {
    /// Whether there is no room for another Job of that size, or, where that is not known yet, for
    /// any.
    fn is_full(&self, size: Option<usize>) -> bool {
        let bytes = self.bytes.saturating_add(size.unwrap_or(0));
        self.jobs >= JOBS_AT_ONCE || self.jobs > 0 && bytes > BYTES_AT_ONCE
    }

    fn add(&mut self, size: usize) {
        self.jobs += 1;
        self.bytes = self.bytes.saturating_add(size);
    }
}

/// How many bytes a Job has as it is sent.
fn length(job: &Job) -> usize {
    serde_json::to_vec(job).map_or(BYTES_AT_ONCE, |text| text.len())
}
