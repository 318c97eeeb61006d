//! The child Jobs of a JobSet, sorted by their state.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use lockstep_api::{JobSet, KIND, labels};

use crate::common::features::Features;
use crate::jobset::jobs::{has_condition, true_condition};
use crate::jobset::owner::{controller_of, is_controlled_by};

/// The Jobs of a JobSet. Each is in exactly one of the lists, ordered by name.
#[derive(Debug, Default)]
pub(crate) struct Children<'a> {
    /// Of the current run, neither succeeded nor failed.
    pub(crate) active: Vec<&'a Job>,
    /// Of the current run.
    pub(crate) succeeded: Vec<&'a Job>,
    /// Of the current run.
    pub(crate) failed: Vec<&'a Job>,
    /// Of an earlier run; to be deleted.
    pub(crate) previous: Vec<&'a Job>,
    /// How many Jobs the JobSet has, including those in none of the lists.
    pub(crate) owned: usize,
    /// Names that are not free: those of its Jobs, and of Jobs that an earlier JobSet of the same
    /// name left behind, which the garbage collector is about to remove.
    pub(crate) taken: BTreeSet<&'a str>,
}

impl<'a> Children<'a> {
    pub(crate) fn sort(jobset: &JobSet, jobs: &'a [Arc<Job>], features: Features) -> Self {
        let uid = jobset.metadata.uid.as_deref().unwrap_or_default();
        let restart_attempt = jobset.restart_attempt();
        let mut children = Self::default();
        for job in jobs {
            let job: &Job = job;
            let name = job.metadata.name.as_deref().unwrap_or_default();
            if !is_controlled_by(&job.metadata, uid) {
                if is_left_behind(job, jobset.metadata.name.as_deref().unwrap_or_default()) {
                    children.taken.insert(name);
                }
                continue;
            }
            children.taken.insert(name);
            children.owned += 1;
            // A Job whose attempt cannot be read is neither counted nor deleted: a user has
            // tampered with it.
            let Some(attempt) =
                label(job, labels::RESTART_ATTEMPT).and_then(|value| value.parse::<i32>().ok())
            else {
                continue;
            };
            if attempt < restart_attempt || features.restart_job && is_behind(jobset, job) {
                children.previous.push(job);
            } else if has_condition(job, "Failed") {
                children.failed.push(job);
            } else if has_condition(job, "Complete") {
                children.succeeded.push(job);
            } else {
                children.active.push(job);
            }
        }
        children
    }
}

/// True if the failure policy wants this Job recreated on its own. A Job without a readable attempt
/// is left unchanged.
fn is_behind(jobset: &JobSet, job: &Job) -> bool {
    let attempt = || {
        let target = jobset.job_restarts(label(job, labels::REPLICATED_JOB_NAME)?, job_index(job)?);
        let attempt: i32 = label(job, labels::JOB_RESTART_ATTEMPT)?.parse().ok()?;
        Some(attempt < target)
    };
    attempt().unwrap_or(false)
}

/// Index of the Job in its replicatedJob.
pub(crate) fn job_index(job: &Job) -> Option<usize> {
    label(job, labels::JOB_INDEX)?.parse().ok()
}

fn is_left_behind(job: &Job, jobset: &str) -> bool {
    controller_of(&job.metadata).is_some_and(|owner| owner.kind == KIND && owner.name == jobset)
}

/// The condition that says why the Job failed.
pub(crate) fn failure(job: &Job) -> Option<&JobCondition> {
    true_condition(job, "Failed")
}

/// The value of one of the Job's labels.
pub(crate) fn label<'a>(job: &'a Job, key: &str) -> Option<&'a str> {
    job.metadata.labels.as_ref()?.get(key).map(String::as_str)
}
