//! Creates missing Jobs, one batch at a time.
//!
//! Promises: a batch is bounded, however many Jobs are missing; if more are missing, the JobSet is
//! reconciled again at once. The order is that of the graph, as if all were created together: a
//! replicatedJob that depends on another waits for all of its Jobs.

use jiff::SignedDuration;
use lockstep_api::{GangPhase, RestartStrategy};

use super::batch::{Batch, Size};
use super::jobs::Jobs;
use super::{Rollout, pod_groups};
use crate::{
    gang, jobset::active, jobset::children::Children, jobset::observed::Observed, jobset::plan::Plan,
    jobset::status::Draft,
};

/// Adds the next missing Jobs to the plan.
pub(super) fn jobs(
    observed: &Observed,
    children: &Children<'_>,
    rollout: &Rollout<'_>,
    draft: &Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    let waits_for_all =
        jobset.restart_strategy() == RestartStrategy::BlockingRecreate && !children.previous.is_empty();
    if waits_for_all {
        return;
    }
    let attempt = active::execution_attempt(&draft.status, &observed.features);
    let mut jobs = Jobs::new(jobset, observed.features, &observed.agents).with_execution_attempt(attempt);
    if !observed.has_daemons {
        jobs = jobs.without_daemons();
    }
    let mut batch = Batch::default();
    for stage in rollout
        .graph
        .stages
        .iter()
        .filter(|stage| stage.may_be_created(jobset.is_suspended(), rollout.reached))
        .filter(|stage| {
            !rollout
                .stopped
                .contains(gang::gang_name(jobset, &stage.replicated_job.name))
        })
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
            // The Jobs of a replicatedJob differ only in numbers.
            batch.add(*size.get_or_insert_with(|| Size::of(&job)));
            plan.create_jobs.push(job);
        }
    }
}
