//! Suspends and resumes the Jobs of a JobSet.
//!
//! Promise: Jobs are resumed in batches, since each takes a copy of its template. If more are left,
//! the JobSet is reconciled again at once, and counts as suspended until the last one.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    GangPhase,
    conditions::{self, messages, reasons},
    labels,
};
use lockstep_mutants::mutant;

use super::batch::{Batch, Size};
use super::{Rollout, is_deleting, pod_groups};
use crate::{
    gang::{self, Marks},
    jobset::active,
    jobset::children::{Children, label},
    jobset::observed::Observed,
    jobset::plan::{Change, JobChange, JobRef, Plan, Severity},
    jobset::resume,
    jobset::startup,
    jobset::status::{self, Draft, NewCondition},
};

/// Suspends the Jobs of a suspended JobSet.
pub(super) fn suspend(children: &Children<'_>, draft: &mut Draft<'_>, plan: &mut Plan) {
    suspend_jobs(children.active.iter().copied(), plan);
    // Their pods are deleted. Resumed gangs start together again.
    draft.status.gangs.clear();
    draft.set_condition(&NewCondition {
        severity: Severity::Normal,
        type_: conditions::SUSPENDED,
        status: true,
        reason: reasons::SUSPENDED_JOBS,
        message: messages::SUSPENDED_JOBS,
    });
    draft.set_not_restarting(reasons::JOBSET_SUSPENDED, messages::SUSPENDED_JOBS);
}

fn suspend_jobs<'a>(jobs: impl Iterator<Item = &'a Job>, plan: &mut Plan) {
    let running = jobs.filter(|job| !is_deleting(job) && !status::is_suspended(job));
    plan.change_jobs.extend(running.map(|job| JobChange {
        job: JobRef::of(job),
        change: Change::Suspend,
    }));
}

/// Resumes the next Jobs that may run.
pub(super) fn resume(
    observed: &Observed,
    children: &Children<'_>,
    rollout: &Rollout<'_>,
    draft: &mut Draft<'_>,
    plan: &mut Plan,
) {
    let jobset = &*observed.jobset;
    let attempt = active::execution_attempt(&draft.status, &observed.features);
    let mut batch = Batch::default();
    for stage in rollout
        .graph
        .stages
        .iter()
        .filter(|stage| stage.may_run(rollout.reached))
    {
        let replicated_job = stage.replicated_job;
        let own = |job: &&&Job| label(job, labels::REPLICATED_JOB_NAME) == Some(replicated_job.name.as_str());
        let own = || children.active.iter().filter(own).copied();
        let backs_off = gang::phase(jobset, draft, &replicated_job.name) == Some(&GangPhase::BackingOff);
        if backs_off && !mutant!(KeepWhatTimedOut) {
            suspend_jobs(own(), plan);
            continue;
        }
        let pods = &observed.gang_pods;
        if rollout
            .stopped
            .contains(gang::gang_name(jobset, &replicated_job.name))
            || gang::awaits_group(jobset, children, pods, draft, &replicated_job.name)
        {
            continue;
        }
        let pod_groups = pod_groups(observed, children, replicated_job);
        let mut size = None;
        for job in own().filter(|job| !is_deleting(job) && status::is_suspended(job)) {
            if Marks::differ(jobset, replicated_job, job, pod_groups) {
                plan.delete_jobs.push(JobRef::of(job));
                continue;
            }
            if batch.is_full(size) {
                plan.requeue_after = Some(SignedDuration::ZERO);
                return;
            }
            let mut resume = resume::merge(job, replicated_job);
            resume.execution_attempt = attempt;
            if observed.features.mutable_resources {
                resume.resources = resume::resources(replicated_job);
            }
            // Jobs of a replicatedJob differ only in what others have added to them.
            batch.add(*size.insert(Size::of(&resume)));
            plan.change_jobs.push(JobChange {
                job: JobRef::of(job),
                change: Change::Resume(Box::new(resume)),
            });
        }
    }
    if !startup::is_in_progress(jobset, rollout.reached) {
        draft.set_resumed();
    }
}
