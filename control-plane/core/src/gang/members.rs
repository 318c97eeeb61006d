//! From API objects to gangs: which replicatedJobs form one, with which pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, ReplicatedJob, annotations, labels, naming};

use super::{Exclusive, Gang, JobSetGangs, Needs, Part, Pod};
use crate::jobset::children::{job_index, label};
use crate::jobset::jobs::{completed_indexes, failed_indexes, has_condition};
use crate::jobset::limits;
use crate::jobset::placement::LONGEST_LABEL;
use crate::jobset::status::is_suspended;

/// True if the replicatedJobs of a JobSet start in order, so that each is its own gang.
#[must_use]
pub fn dependent(jobset: &JobSet) -> bool {
    jobset.executes_in_order().is_some()
        || jobset.starts_in_order()
        || jobset
            .spec
            .replicated_jobs
            .iter()
            .any(|job| !job.depends_on.is_empty())
}

/// The PriorityClass that the pod template of a replicatedJob names.
pub(super) fn priority_class(replicated_job: &ReplicatedJob) -> Option<&str> {
    let job = replicated_job.template.spec.as_ref()?;
    let name = job.template.spec.as_ref()?.priority_class_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Name of a replicatedJob's gang: its own name if replicatedJobs start in order, else that of the
/// first replicatedJob.
#[must_use]
pub fn gang_name<'a>(jobset: &'a JobSet, replicated_job: &'a str) -> &'a str {
    let first = jobset.spec.replicated_jobs.first();
    match first {
        Some(first) if !dependent(jobset) => &first.name,
        _ => replicated_job,
    }
}

/// The gangs of a JobSet, from its Jobs and the pods with its UID; `None`: it has none to manage,
/// because it asks for none, is suspended, has finished, is being deleted, is managed by another
/// controller or exceeds the limits.
#[must_use]
pub fn members(jobset: &JobSet, jobs: &[Arc<Job>], pods: &[Arc<Pod>]) -> Option<JobSetGangs> {
    let spec = jobset.spec.gang.as_ref()?;
    let is_over = jobset.is_suspended() || jobset.is_finished() || jobset.is_deleting();
    if is_over || !jobset.is_managed_here() || limits::is_over(jobset) {
        return None;
    }
    let current: Vec<&Job> = jobs
        .iter()
        .map(AsRef::as_ref)
        .filter(|job| is_of(job, jobset))
        .collect();
    let minimums = spec.minimums(&jobset.spec.replicated_jobs);
    let timeout = SignedDuration::from_secs(i64::from(spec.schedule_timeout_seconds()));
    let mut gangs: Vec<Gang> = Vec::new();
    for replicated_job in &jobset.spec.replicated_jobs {
        let name = gang_name(jobset, &replicated_job.name);
        let jobs: Vec<&Job> = current
            .iter()
            .copied()
            .filter(|job| label(job, labels::REPLICATED_JOB_NAME) == Some(&replicated_job.name))
            .collect();
        let minimum = minimums.get(replicated_job.name.as_str()).copied().unwrap_or(0);
        let mut part = part(jobset, replicated_job, &jobs, minimum);
        part.pods = pods_of(jobset, replicated_job, pods);
        let asked = started_at(&jobs);
        // Ended Jobs may have used another backend than those that were recreated since.
        let pod_group = jobs
            .iter()
            .filter(|job| !has_ended(job))
            .find_map(|job| pod_group(job));
        let gang = match gangs.last_mut().filter(|gang| gang.name == name) {
            Some(gang) => gang,
            None => gangs.push_mut(Gang {
                name: name.to_owned(),
                priority_class: priority_class(replicated_job).map(ToOwned::to_owned),
                timeout,
                ..Gang::default()
            }),
        };
        gang.asked = [gang.asked, asked].into_iter().flatten().min();
        gang.is_created |= !jobs.is_empty() && replicated_job.pods() > 0;
        if let Some(name) = pod_group {
            gang.pod_group = Some(name.to_owned());
        }
        gang.parts.push(part);
    }
    // The gang that starts first has its position in the queue from the creation of the JobSet.
    let first = jobset.spec.replicated_jobs.first().map(|job| job.name.as_str());
    gangs.retain(|gang| gang.is_created || Some(gang.name.as_str()) == first);
    for gang in &mut gangs {
        gang.is_stopped = is_stopped(jobset, &current, gang);
    }
    Some(JobSetGangs {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        uid: jobset.uid_str().to_owned(),
        created: jobset
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0)
            .unwrap_or_default(),
        restart_attempt: jobset.restart_attempt(),
        status: jobset
            .status
            .as_ref()
            .map(|status| status.gangs.clone())
            .unwrap_or_default(),
        gangs,
    })
}

/// The pods of a replicatedJob's current Jobs.
fn pods_of(jobset: &JobSet, replicated_job: &ReplicatedJob, pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let restart_attempt = jobset.restart_attempt();
    pods.iter()
        .filter(|pod| pod.replicated_job == replicated_job.name)
        .filter(|pod| pod.namespace == jobset.ns() && pod.jobset_uid == jobset.uid_str())
        .filter(|pod| pod.restart_attempt == restart_attempt)
        .cloned()
        .collect()
}

/// When the first of the Jobs was started.
fn started_at(jobs: &[&Job]) -> Option<Timestamp> {
    let started = jobs
        .iter()
        .filter_map(|job| job.status.as_ref()?.start_time.as_ref());
    started.map(|time| time.0).min()
}

/// True if the gang has Jobs that have not ended, and all of them are suspended.
fn is_stopped(jobset: &JobSet, current: &[&Job], gang: &Gang) -> bool {
    let ours = |job: &&&Job| {
        label(job, labels::REPLICATED_JOB_NAME).is_some_and(|name| gang_name(jobset, name) == gang.name)
    };
    let mut left = current
        .iter()
        .filter(|job| !has_ended(job))
        .filter(ours)
        .peekable();
    left.peek().is_some() && left.all(|job| is_suspended(job))
}

/// True if the Job belongs to the current restart attempt of this JobSet.
fn is_of(job: &Job, jobset: &JobSet) -> bool {
    let attempt = label(job, labels::RESTART_ATTEMPT).and_then(|attempt| attempt.parse().ok());
    label(job, labels::JOBSET_UID) == Some(jobset.uid_str())
        && attempt == Some(jobset.restart_attempt())
        && job.metadata.deletion_timestamp.is_none()
}

fn has_ended(job: &Job) -> bool {
    has_condition(job, "Complete") || has_condition(job, "Failed")
}

/// Name of the PodGroup that the Job's pods below the minimum name.
fn pod_group(job: &Job) -> Option<&str> {
    let template = job.spec.as_ref()?.template.metadata.as_ref()?;
    let name = template.annotations.as_ref()?.get(annotations::GANG_POD_GROUP)?;
    Some(name)
}

/// A replicatedJob of a gang, without its pods.
pub(super) fn part(jobset: &JobSet, replicated_job: &ReplicatedJob, jobs: &[&Job], minimum: i32) -> Part {
    let parallelism = u32::try_from(replicated_job.parallelism()).unwrap_or(0);
    let replicas = u32::try_from(replicated_job.replicas()).unwrap_or(0);
    let indexed = is_indexed(replicated_job);
    let mut done = BTreeSet::new();
    for job in jobs {
        let job_index = job_index(job)
            .and_then(|index| u32::try_from(index).ok())
            .unwrap_or(0);
        // No pod of such a Job is expected. Its labels may be forged.
        if job_index >= replicas {
            continue;
        }
        let ended = has_ended(job);
        let indexes = 0..parallelism;
        let ordinals = indexes
            .filter(|index| ended || is_done(job, indexed, *index, parallelism))
            .filter_map(|index| job_index.checked_mul(parallelism)?.checked_add(index));
        done.extend(ordinals);
    }
    Part {
        name: replicated_job.name.clone(),
        minimum: u32::try_from(minimum).unwrap_or(0),
        replicas,
        parallelism,
        indexed,
        done,
        needs: needs(jobset, replicated_job),
        pods: Vec::new(),
    }
}

/// True if each pod of a Job keeps its own completion index while the Job runs.
pub(super) fn is_indexed(replicated_job: &ReplicatedJob) -> bool {
    let spec = replicated_job.template.spec.as_ref();
    let mode = spec.and_then(|spec| spec.completion_mode.as_deref());
    let completions = spec.and_then(|spec| spec.completions);
    let indexed = mode.is_none_or(|mode| mode == "Indexed");
    indexed && completions == Some(replicated_job.parallelism())
}

/// True if a Job has no work left for its pod with this completion index.
fn is_done(job: &Job, indexed: bool, index: u32, parallelism: u32) -> bool {
    if indexed {
        let over = [completed_indexes(job), failed_indexes(job)];
        return over.iter().flatten().any(|range| range.contains(&index));
    }
    let status = job.status.as_ref();
    let count = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let succeeded = count(status.and_then(|status| status.succeeded));
    let failed = failed_indexes(job)
        .iter()
        .map(|range| range.end().saturating_sub(*range.start()).saturating_add(1))
        .fold(0, u32::saturating_add);
    // The Job controller runs at most as many pods as there is work left, and creates none for a
    // work queue once a pod has succeeded.
    let left = match job.spec.as_ref().and_then(|spec| spec.completions) {
        Some(completions) => count(Some(completions))
            .saturating_sub(succeeded)
            .saturating_sub(failed),
        None if succeeded > 0 => count(status.and_then(|status| status.active)),
        None => parallelism,
    };
    index >= left.min(parallelism)
}

/// The needs of pods from the template, by Job index. Exclusively placed Jobs differ only in their
/// key.
fn needs(jobset: &JobSet, replicated_job: &ReplicatedJob) -> Vec<Arc<Needs>> {
    let template = replicated_job.template.spec.as_ref().map(|spec| &spec.template);
    let meta = template
        .and_then(|template| template.metadata.clone())
        .unwrap_or_default();
    let spec = template.and_then(|template| template.spec.as_ref());
    let plain = Arc::new(spec.map(|spec| Needs::of(&meta, spec)).unwrap_or_default());
    let topology = topology(jobset, replicated_job).filter(|topology| topology.len() <= LONGEST_LABEL);
    let jobs = 0..replicated_job.replicas().max(0);
    let of_job = |index| match topology {
        Some(topology) => Arc::new(Needs {
            exclusive: Some(Exclusive {
                topology: topology.to_owned(),
                job_key: naming::job_key(
                    jobset.ns(),
                    &jobset.job_name(&replicated_job.name, i64::from(index)),
                ),
                priority: None,
            }),
            ..(*plain).clone()
        }),
        None => Arc::clone(&plain),
    };
    jobs.map(of_job).collect()
}

/// The node label whose values are the domains, if the Jobs of a replicatedJob are placed
/// exclusively by affinity.
pub(super) fn topology<'a>(jobset: &'a JobSet, replicated_job: &'a ReplicatedJob) -> Option<&'a str> {
    let own = replicated_job.template.metadata.as_ref();
    let sources = [
        own.and_then(|meta| meta.annotations.as_ref()),
        jobset.metadata.annotations.as_ref(),
    ];
    let source = sources
        .into_iter()
        .flatten()
        .find(|annotations| annotations.contains_key(annotations::EXCLUSIVE_TOPOLOGY))?;
    let by_node_selector = source.contains_key(annotations::NODE_SELECTOR_STRATEGY);
    let topology = source.get(annotations::EXCLUSIVE_TOPOLOGY)?;
    (!by_node_selector).then_some(topology.as_str())
}
