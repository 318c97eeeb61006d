//! Completed Jobs stay completed when their objects are removed, by their own
//! `ttlSecondsAfterFinished` or by a user.
//!
//! Promises: once `status.completedJobs` names a Job, it counts as succeeded until the next restart
//! attempt, also across changes of the leader. The record is written in ranges, and is bounded by
//! the number of Jobs that a JobSet may have ([`limits`](crate::jobset::limits)).
//!
//! A Job that exists counts as what it is. A recorded Job that no longer exists is replaced by a
//! stand-in with a few fields, so that code that decides about Jobs need not know that it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{CompletedJobs, JobSet, JobSetStatus, ReplicatedJob, labels};

use crate::jobset::children::{Children, job_index, label};
use crate::jobset::jobs::{has_condition, indexes};
use crate::jobset::limits;
use crate::jobset::owner::{is_controlled_by, owner_reference};
use crate::jobset::upstream_agent::AgentPod;

#[cfg(test)]
mod tests;

/// A completed Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedJob {
    replicated_job: String,
    index: u32,
    attempt: i32,
}

/// The completed Jobs of the current restart attempt, as a JobSet's status records them.
#[derive(Debug, Default)]
pub struct Recorded<'a>(BTreeMap<&'a str, BTreeSet<u32>>);

impl CompletedJob {
    /// What to record of a Job; `None` if it has not completed.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        if !has_condition(job, "Complete") {
            return None;
        }
        Some(Self {
            replicated_job: label(job, labels::REPLICATED_JOB_NAME)?.to_owned(),
            index: job_index(job)?.try_into().ok()?,
            attempt: label(job, labels::RESTART_ATTEMPT)?.parse().ok()?,
        })
    }

    /// True if it is missing in `recorded`, the record in its JobSet's status, or may be.
    #[must_use]
    pub fn is_unrecorded(&self, jobset: &JobSet, recorded: &Recorded<'_>) -> bool {
        // The cached JobSet may be older than the Job.
        self.attempt > jobset.restart_attempt()
            || self.attempt == jobset.restart_attempt()
                && jobset
                    .replicated_job(&self.replicated_job)
                    .is_some_and(|job| self.index < replicas(job))
                && !recorded.has(&self.replicated_job, self.index)
    }

    /// A stand-in for it, if it belongs to the current restart attempt.
    #[must_use]
    pub fn stand_in(&self, jobset: &JobSet) -> Option<Job> {
        let replicated_job = jobset.replicated_job(&self.replicated_job)?;
        (self.attempt == jobset.restart_attempt()).then(|| stand_in(jobset, replicated_job, self.index))
    }
}

impl<'a> Recorded<'a> {
    /// Reads a JobSet's status. Reads nothing of a JobSet that exceeds the limits.
    #[must_use]
    pub fn of(jobset: &'a JobSet) -> Self {
        let completed = jobset.status.iter().flat_map(|status| &status.completed_jobs);
        let mut recorded = Self::default();
        let current = completed.filter(|completed| completed.restart_attempt == jobset.restart_attempt());
        for completed in current.filter(|_| !limits::is_over(jobset)) {
            if let Some(replicated_job) = jobset.replicated_job(&completed.name) {
                let all = recorded.0.entry(&replicated_job.name).or_default();
                all.extend(stated(&completed.indexes, replicated_job));
            }
        }
        recorded
    }

    fn has(&self, replicated_job: &str, index: u32) -> bool {
        self.0.get(replicated_job).is_some_and(|all| all.contains(&index))
    }
}

/// The Jobs of a JobSet, with stand-ins for those that have completed and are gone.
#[must_use]
pub fn with_gone(jobset: &JobSet, mut jobs: Vec<Arc<Job>>) -> Vec<Arc<Job>> {
    let recorded = Recorded::of(jobset);
    // The usual case.
    if recorded.0.is_empty() {
        return jobs;
    }
    let own = jobs
        .iter()
        .filter(|job| is_controlled_by(&job.metadata, jobset.uid_str()));
    let there: BTreeSet<&str> = own.filter_map(|job| job.metadata.name.as_deref()).collect();
    let mut gone = Vec::new();
    for (name, indexes) in &recorded.0 {
        let Some(replicated_job) = jobset.replicated_job(name) else {
            continue;
        };
        let is_gone = |index: &&u32| {
            let name = jobset.job_name(&replicated_job.name, i64::from(**index));
            !there.contains(name.as_str())
        };
        let all = indexes.iter().filter(is_gone);
        gone.extend(all.map(|index| Arc::new(stand_in(jobset, replicated_job, *index))));
    }
    jobs.extend(gone);
    jobs
}

/// The pods as upstream's in-place restart controller sees them, with those of Jobs that are gone.
pub(crate) fn with_pods_gone(children: &Children<'_>, pods: &[AgentPod]) -> Vec<AgentPod> {
    let gone = children.succeeded.iter().filter(|job| is_stand_in(job));
    let gone = gone.map(|job| job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1));
    let gone = gone.map(|pods| usize::try_from(pods).unwrap_or(0)).sum::<usize>();
    let succeeded = AgentPod {
        succeeded: true,
        ..AgentPod::default()
    };
    let gone = std::iter::repeat_n(succeeded, gone.min(limits::MOST_WORKERS));
    pods.iter().cloned().chain(gone).collect()
}

/// The record to write: what `before`, the JobSet's status, has, and what has succeeded since.
pub(crate) fn record(jobset: &JobSet, before: &JobSetStatus, children: &Children<'_>) -> Vec<CompletedJobs> {
    // A finished JobSet stays as it is: its Jobs are not recreated.
    if limits::is_over(jobset) || jobset.is_finished() {
        return before.completed_jobs.clone();
    }
    let Recorded(mut all) = Recorded::of(jobset);
    for job in &children.succeeded {
        let name = label(job, labels::REPLICATED_JOB_NAME);
        let replicated_job = name.and_then(|name| jobset.replicated_job(name));
        let index = job_index(job).and_then(|index| u32::try_from(index).ok());
        if let (Some(replicated_job), Some(index)) = (replicated_job, index)
            && index < replicas(replicated_job)
        {
            all.entry(&replicated_job.name).or_default().insert(index);
        }
    }
    let all = all.into_iter().filter(|(_, indexes)| !indexes.is_empty());
    all.map(|(name, indexes)| CompletedJobs {
        name: name.to_owned(),
        restart_attempt: jobset.restart_attempt(),
        indexes: in_ranges(&indexes),
    })
    .collect()
}

fn replicas(replicated_job: &ReplicatedJob) -> u32 {
    u32::try_from(replicated_job.replicas()).unwrap_or(0)
}

/// The indexes below the number of replicas, each once and in ascending order, whatever ranges the
/// text has.
fn stated(text: &str, replicated_job: &ReplicatedJob) -> impl Iterator<Item = u32> + use<> {
    let end = replicas(replicated_job);
    let mut ranges = indexes(text);
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut next = 0;
    ranges.into_iter().flat_map(move |range| {
        let first = next.max(*range.start());
        let after = range.end().saturating_add(1).min(end);
        next = next.max(after);
        first..after
    })
}

/// The text that [`indexes`] reads.
fn in_ranges(indexes: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let texts = ranges.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// Only Jobs that exist in the API server have a UID.
fn is_stand_in(job: &Job) -> bool {
    job.metadata.uid.is_none()
}

/// The stand-in for a completed Job that is gone.
fn stand_in(jobset: &JobSet, replicated_job: &ReplicatedJob, index: u32) -> Job {
    let template = replicated_job.template.spec.as_ref();
    let parallelism = template.and_then(|spec| spec.parallelism);
    let completions = template.and_then(|spec| spec.completions);
    let own = [
        (labels::JOBSET_NAME, jobset.name().to_owned()),
        (labels::JOBSET_UID, jobset.uid_str().to_owned()),
        (labels::REPLICATED_JOB_NAME, replicated_job.name.clone()),
        (labels::JOB_INDEX, index.to_string()),
        (labels::RESTART_ATTEMPT, jobset.restart_attempt().to_string()),
    ];
    Job {
        metadata: ObjectMeta {
            name: Some(jobset.job_name(&replicated_job.name, i64::from(index))),
            namespace: jobset.metadata.namespace.clone(),
            labels: Some(
                own.into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            ),
            owner_references: Some(vec![owner_reference(jobset)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            parallelism,
            completions,
            completion_mode: template.and_then(|spec| spec.completion_mode.clone()),
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            succeeded: completions.or(parallelism).or(Some(1)),
            conditions: Some(vec![JobCondition {
                type_: "Complete".to_owned(),
                status: "True".to_owned(),
                ..JobCondition::default()
            }]),
            ..JobStatus::default()
        }),
    }
}
