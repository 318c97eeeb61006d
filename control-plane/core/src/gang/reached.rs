//! The progress of a JobSet with gangs, for the reconciler: whether its minimum is ready, running
//! or done.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    GangPhase, GangStatus, JobSet, ReplicatedJob, ReplicatedJobStatus,
    conditions::{self, reasons},
    labels,
};

use super::marks::has_pod_group;
use super::members::{is_indexed, part};
use super::{gang_name, leaving, message};
use crate::jobset::children::{Children, label};
use crate::jobset::plan::Severity;
use crate::jobset::pod::GangPod;
use crate::jobset::status::{Draft, NewCondition, is_suspended};

/// The counts of Jobs by which other replicatedJobs and the success policy go. A replicatedJob is
/// ready with as many pods as its minimum, and has succeeded once these have and every pod that
/// ever started has ended. The status shows the Jobs as they are.
pub(crate) fn reached(
    jobset: &JobSet,
    children: &Children<'_>,
    pods: &[GangPod],
    counts: &[ReplicatedJobStatus],
) -> Vec<ReplicatedJobStatus> {
    let mut reached = counts.to_vec();
    let Some(spec) = &jobset.spec.gang else {
        return reached;
    };
    let minimums = spec.minimums(&jobset.spec.replicated_jobs);
    for counts in &mut reached {
        let Some(replicated_job) = jobset.replicated_job(&counts.name) else {
            continue;
        };
        let minimum = minimums.get(counts.name.as_str()).copied().unwrap_or(0);
        if minimum >= replicated_job.pods() {
            continue;
        }
        let jobs = jobs_of(children, replicated_job);
        let left = replicated_job.replicas().saturating_sub(counts.failed);
        let is_done = has_succeeded(jobset, replicated_job, &jobs, minimum);
        if is_done && has_unstarted(&children.active, replicated_job, pods) && !is_at_work(&jobs, pods) {
            counts.succeeded = left;
            counts.ready = 0;
        } else if ready(replicated_job, &jobs) >= minimum && !jobs.is_empty() {
            counts.ready = left.saturating_sub(counts.succeeded);
        }
    }
    reached
}

/// The Jobs of the current run.
fn jobs_of<'a>(children: &Children<'a>, replicated_job: &ReplicatedJob) -> Vec<&'a Job> {
    let all = children
        .active
        .iter()
        .chain(&children.succeeded)
        .chain(&children.failed);
    all.copied()
        .filter(|job| label(job, labels::REPLICATED_JOB_NAME) == Some(replicated_job.name.as_str()))
        .collect()
}

/// True if the work of all pods below the minimum is done.
fn has_succeeded(jobset: &JobSet, replicated_job: &ReplicatedJob, jobs: &[&Job], minimum: i32) -> bool {
    if minimum == 0 || jobs.is_empty() {
        return false;
    }
    if is_indexed(replicated_job) {
        let part = part(jobset, replicated_job, jobs, minimum);
        return (0..part.minimum).all(|ordinal| part.done.contains(&ordinal));
    }
    succeeded(jobs) >= minimum
}

/// True if there is work that no pod has ever begun, and the Job controller has counted all pods
/// that have ended. It marks a Job as complete a moment after its last pod has ended.
fn has_unstarted(active: &[&Job], replicated_job: &ReplicatedJob, pods: &[GangPod]) -> bool {
    let ours = |job: &&&Job| label(job, labels::REPLICATED_JOB_NAME) == Some(replicated_job.name.as_str());
    let mut left = false;
    for job in active.iter().filter(ours) {
        let ended = |how: fn(&GangPod) -> bool| count(pods, job, how);
        let status = job.status.clone().unwrap_or_default();
        let (succeeded, failed) = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
        if ended(|pod| pod.succeeded) > succeeded || ended(|pod| pod.failed) > failed {
            return false;
        }
        let completions = job.spec.as_ref().and_then(|spec| spec.completions);
        left |= completions.is_none_or(|completions| succeeded < completions);
    }
    left
}

/// The number of a Job's pods for which `holds` is true.
fn count(pods: &[GangPod], job: &Job, holds: impl Fn(&GangPod) -> bool) -> i32 {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let counted = pods.iter().filter(|pod| pod.job == name && holds(pod)).count();
    i32::try_from(counted).unwrap_or(i32::MAX)
}

fn is_at_work(jobs: &[&Job], pods: &[GangPod]) -> bool {
    let mut bound = pods.iter().filter(|pod| pod.bound);
    bound.any(|pod| {
        jobs.iter()
            .any(|job| job.metadata.name.as_deref() == Some(pod.job.as_str()))
    })
}

fn ready(replicated_job: &ReplicatedJob, jobs: &[&Job]) -> i32 {
    let of_job = |job: &&Job| job.status.as_ref().and_then(|status| status.ready).unwrap_or(0);
    let ready = jobs.iter().map(of_job).fold(0, i32::saturating_add);
    ready.saturating_add(succeeded(jobs).min(replicated_job.pods()))
}

fn succeeded(jobs: &[&Job]) -> i32 {
    let of_job = |job: &&Job| {
        job.status
            .as_ref()
            .and_then(|status| status.succeeded)
            .unwrap_or(0)
    };
    jobs.iter().map(of_job).fold(0, i32::saturating_add)
}

/// Reports whether as many pods run as the gangs of the JobSet need. ReplicatedJobs without Jobs do
/// not count yet. `overruled` is why gates start the gangs although PodGroups are asked for.
pub(crate) fn report(
    jobset: &JobSet,
    children: &Children<'_>,
    pods: &[GangPod],
    overruled: Option<&str>,
    draft: &mut Draft<'_>,
) {
    let Some(spec) = &jobset.spec.gang else {
        // A gang that was removed while the JobSet was suspended is no longer reported.
        draft.status.gangs.clear();
        let all = &mut draft.status.conditions;
        all.retain(|condition| condition.type_ != conditions::MIN_AVAILABLE);
        return;
    };
    let minimums = spec.minimums(&jobset.spec.replicated_jobs);
    let mut minimum: i32 = 0;
    let mut all_run = true;
    for replicated_job in &jobset.spec.replicated_jobs {
        let jobs = jobs_of(children, replicated_job);
        if jobs.is_empty() {
            continue;
        }
        let needed = minimums.get(replicated_job.name.as_str()).copied().unwrap_or(0);
        minimum = minimum.saturating_add(needed);
        // The Job controller counts a succeeded pod with some delay.
        let reached = jobs.iter().map(|job| {
            let counted = count(pods, job, |pod| pod.succeeded).max(succeeded(&[*job]));
            count(pods, job, |pod| pod.running).saturating_add(counted)
        });
        all_run &= reached.fold(0, i32::saturating_add) >= needed;
    }
    let timed_out = draft
        .status
        .gangs
        .iter()
        .filter(|gang| gang.phase == GangPhase::BackingOff && gang.restart_attempt == draft.status.restarts)
        .any(|gang| gang.message != Some(message::group_lost()));
    let (status, reason, message) = if all_run && minimum > 0 {
        (
            true,
            reasons::GANG_SCHEDULED,
            format!("the minimum of {} is running", message::pods(minimum)),
        )
    } else if timed_out {
        let message =
            "the minimum number of pods was not bound in time: the gang waits and tries again later";
        (false, reasons::GANG_TIMEOUT, message.to_owned())
    } else {
        let ungrouped = message::ungrouped();
        let mut current = draft.status.gangs.iter();
        let is_stuck = current.any(|gang| {
            gang.restart_attempt == draft.status.restarts && gang.message.as_ref() == Some(&ungrouped)
        });
        let waits = "the minimum number of pods is not running yet";
        let in_the_way = leaving::in_the_way(jobset, children, pods, |name| {
            awaits_group(jobset, children, pods, draft, name)
        });
        let message = match (in_the_way, overruled) {
            _ if is_stuck => ungrouped,
            (Some(pods), _) => format!("{waits}: {pods}"),
            (None, Some(why)) => format!("{waits}; {why}"),
            (None, None) => waits.to_owned(),
        };
        (false, reasons::GANG_WAITING, message)
    };
    draft.set_condition(&NewCondition {
        severity: if timed_out {
            Severity::Warning
        } else {
            Severity::Normal
        },
        type_: conditions::MIN_AVAILABLE,
        status,
        reason,
        message: &message,
    });
}

/// The phase of the gang that a replicatedJob belongs to, in the current run.
pub(crate) fn phase<'a>(
    jobset: &JobSet,
    draft: &'a Draft<'_>,
    replicated_job: &str,
) -> Option<&'a GangPhase> {
    jobset.spec.gang.as_ref()?;
    let gang = draft.status.gang(gang_name(jobset, replicated_job))?;
    Some(&gang.phase)
}

/// The gangs that were released and of which nothing runs: the JobSet was suspended and resumed
/// before that could be written, or their replicatedJobs had no pods for a while. They start over,
/// and their Jobs are created or resumed once that is durable.
pub(crate) fn stopped(jobset: &JobSet, children: &Children<'_>, draft: &Draft<'_>) -> BTreeSet<String> {
    let mut suspended: BTreeMap<&str, bool> = BTreeMap::new();
    for job in &children.active {
        if let Some(gang) = gang_of(jobset, job) {
            *suspended.entry(gang).or_insert(true) &= is_suspended(job);
        }
    }
    let others = [&children.succeeded, &children.failed, &children.previous];
    let others: BTreeSet<&str> = others
        .into_iter()
        .flatten()
        .filter_map(|job| gang_of(jobset, job))
        .collect();
    let is_stopped = |gang: &&GangStatus| match suspended.get(gang.name.as_str()) {
        Some(all) => *all,
        None => !others.contains(gang.name.as_str()),
    };
    let was_released =
        |gang: &&GangStatus| matches!(gang.phase, GangPhase::Scheduling | GangPhase::Scheduled);
    let gangs = draft.status.gangs.iter().filter(was_released);
    gangs.filter(is_stopped).map(|gang| gang.name.clone()).collect()
}

/// The gang of a Job; `None` if its replicatedJob has no pods.
fn gang_of<'a>(jobset: &'a JobSet, job: &'a Job) -> Option<&'a str> {
    let name = label(job, labels::REPLICATED_JOB_NAME)?;
    let has_pods = jobset.replicated_job(name).is_some_and(|job| job.pods() > 0);
    has_pods.then(|| gang_name(jobset, name))
}

/// True if the Jobs of a gang that starts over stay suspended until it waits: some of its pods have
/// ended, so that its old PodGroup must be discarded first, or some still exist, which
/// kube-scheduler would count.
pub(crate) fn awaits_group(
    jobset: &JobSet,
    children: &Children<'_>,
    pods: &[GangPod],
    draft: &Draft<'_>,
    replicated_job: &str,
) -> bool {
    if jobset.spec.gang.is_none() || phase(jobset, draft, replicated_job).is_some() {
        return false;
    }
    let gang = gang_name(jobset, replicated_job);
    let ours = |job: &&&Job| {
        label(job, labels::REPLICATED_JOB_NAME).is_some_and(|name| gang_name(jobset, name) == gang)
    };
    let mut active = children.active.iter().filter(ours);
    let by_pod_group = active.any(|job| has_pod_group(job));
    let mut ended = children.succeeded.iter().chain(&children.failed).filter(ours);
    let has_begun =
        |job: &&Job| succeeded(&[*job]) > 0 || count(pods, job, |pod| pod.succeeded || pod.bound) > 0;
    let mut active = children.active.iter().filter(ours);
    by_pod_group && (ended.next().is_some() || active.any(has_begun))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::JobStatus;

    use super::*;
    use crate::common::testing::{Fate, ReplicatedJobBuild, child, jobset, replicated_job};

    /// The result for a Job of four completions, of which the Job controller has counted `counted`.
    fn unstarted(counted: i32, pods: &[GangPod]) -> bool {
        let four = replicated_job("a", 1).job_spec(|spec| spec.completions = Some(4));
        let mut job = child(&jobset([four.clone()]), "a", 0, Fate::Ready);
        job.status = Some(JobStatus {
            succeeded: Some(counted),
            ..JobStatus::default()
        });
        has_unstarted(&[&job], &four, pods)
    }

    #[test]
    fn a_job_whose_pods_have_all_ended_is_left_to_the_job_controller() {
        let pod = |succeeded| GangPod {
            job: "js-a-0".to_owned(),
            succeeded,
            ..GangPod::default()
        };
        let ended = [pod(true), pod(true), pod(true), pod(true)];
        assert!(!unstarted(0, &ended) && !unstarted(3, &ended) && !unstarted(4, &ended));
        let waiting = [pod(true), pod(true), pod(true), pod(false)];
        assert!(!unstarted(2, &waiting), "one is not counted yet");
        assert!(unstarted(3, &waiting));
    }
}
