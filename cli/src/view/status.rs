//! A JobSet, its Jobs and its workers.
//!
//! Sources:
//! - the JobSet and its Jobs: the API server;
//! - the last restart: the status for its cause and level, the newest event for its time and
//!   duration;
//! - workers: the platform API, which knows what agents report. Workers that have not reported yet
//!   have the state of their pods. So do all workers if the platform API was not asked, or does not
//!   list the JobSet.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use lockstep_api::conditions::{COMPLETED, FAILED, RESTART_BLOCKED, SUSPENDED};
use lockstep_api::{GangPhase, GangStatus, InPlacePhase, InPlaceRestartStatus, JobSet, JobSetStatus, labels};
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::{history, time};
use workers::workers;

mod workers;

#[cfg(test)]
mod tests;

/// What was observed of one JobSet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) jobset: JobSet,
    pub(crate) jobs: Vec<Job>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) events: Vec<Event>,
    /// The group in the platform API, if that was reached and has it.
    pub(crate) group: Option<pb::Group>,
}

/// A JobSet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct View {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// How it ended, or the phase of its restart: Completed, Failed, Suspended, InSync, Stopping,
    /// Parked, Releasing, Recreating, Recovering; Running or Starting if it does not restart in
    /// place.
    pub(crate) phase: String,
    /// How it restarts in place: Supervised, Plain or UpstreamAgent; or Recreate.
    pub(crate) kind: String,
    /// The restart attempt that workers should run, and the last one that was released to run.
    pub(crate) generation: i64,
    pub(crate) released: i64,
    /// Restarts that count towards `maxRestarts`, that limit, and how often the Jobs were
    /// recreated.
    pub(crate) restarts: i32,
    pub(crate) max_restarts: i32,
    pub(crate) recreations: i32,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) last_restart: Option<LastRestart>,
    /// What it waits for or why it ended, from its conditions and its gangs.
    pub(crate) messages: Vec<String>,
    /// Its gangs in the current run.
    pub(crate) gangs: Vec<GangStatus>,
    pub(crate) replicated_jobs: Vec<ReplicatedJob>,
}

/// The last restart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastRestart {
    /// When the worker failed, if known.
    pub(crate) at: Option<Timestamp>,
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
    pub(crate) pod: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) level: Option<String>,
    /// Milliseconds from the failure until all workers ran.
    pub(crate) took_ms: Option<f64>,
}

/// A replicatedJob.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicatedJob {
    pub(crate) name: String,
    pub(crate) replicas: i32,
    pub(crate) ready: i32,
    pub(crate) succeeded: i32,
    pub(crate) failed: i32,
    pub(crate) suspended: i32,
    pub(crate) jobs: Vec<ChildJob>,
}

/// A Job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChildJob {
    pub(crate) name: String,
    /// Complete, Failed, Suspended, Deleting, Active, or Missing.
    pub(crate) state: String,
    pub(crate) workers_expected: usize,
    pub(crate) workers_up: usize,
    pub(crate) workers: Vec<Worker>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Worker {
    /// Completion index within its Job.
    pub(crate) index: u32,
    /// Set if the platform API reports the worker.
    pub(crate) container: Option<String>,
    /// From its agent, or else from its pod.
    pub(crate) state: String,
    pub(crate) up: bool,
    /// Where the state comes from: `agent` or `pod`.
    pub(crate) source: &'static str,
    /// The restart attempt that it runs or waits for.
    pub(crate) generation: Option<u64>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) pod: Option<String>,
    pub(crate) node: Option<String>,
    /// How the processes of its attempt were started.
    pub(crate) starts: Option<Starts>,
    /// The processes that wait for its next attempt.
    pub(crate) standbys: Option<Standbys>,
    /// The last step of its attempt that it has named, and what it says that it is doing.
    pub(crate) step: Option<u64>,
    pub(crate) section: Option<String>,
}

/// How the processes of an attempt were started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Starts {
    pub(crate) standby: u32,
    pub(crate) cold: u32,
    /// CPU time of the imports that a standby had done before, the most of any.
    pub(crate) ahead_ms: u32,
}

/// Processes that are started ahead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Standbys {
    pub(crate) wanted: u32,
    pub(crate) ready: u32,
    pub(crate) memory_kib: u64,
    pub(crate) modules: u32,
    /// Why there are fewer than wanted, or none can be.
    pub(crate) reason: Option<String>,
}

/// The view of one JobSet.
pub(crate) fn view(seen: &Observed) -> View {
    let jobset = &seen.jobset;
    let none = JobSetStatus::default();
    let status = jobset.status.as_ref().unwrap_or(&none);
    let in_place = status.in_place_restart.as_ref();
    let group = seen.group.as_ref();
    let durable = in_place.map_or(0, |status| status.generation);
    let generation = group.map_or(durable, |group| number(group.generation).max(durable));
    let released = in_place.map_or(0, |status| status.released);
    View {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        phase: phase(jobset, status, group),
        kind: kind(jobset, in_place),
        generation,
        released: group.map_or(released, |group| number(group.released).max(released)),
        restarts: restarts(jobset, in_place, group),
        max_restarts: jobset.max_restarts(),
        recreations: status.restarts,
        created_at: jobset.metadata.creation_timestamp.as_ref().map(|time| time.0),
        last_restart: last_restart(seen, in_place),
        messages: messages(status),
        gangs: gangs(status).cloned().collect(),
        replicated_jobs: replicated_jobs(seen, status),
    }
}

fn number(generation: u64) -> i64 {
    i64::try_from(generation).unwrap_or(i64::MAX)
}

fn restarts(jobset: &JobSet, in_place: Option<&InPlaceRestartStatus>, group: Option<&pb::Group>) -> i32 {
    match (group, in_place) {
        (Some(group), _) => i32::try_from(group.restarts).unwrap_or(i32::MAX),
        (None, Some(status)) => status.restarts,
        (None, None) => {
            let status = jobset.status.as_ref();
            status.map_or(0, |status| status.restarts_count_towards_max)
        }
    }
}

/// The phase. An end takes precedence, then what the coordinator reports, then what it has written.
fn phase(jobset: &JobSet, status: &JobSetStatus, group: Option<&pb::Group>) -> String {
    if jobset.is_deleting() {
        return "Deleting".to_owned();
    }
    if let Some(state) = &status.terminal_state {
        return state.to_string();
    }
    if jobset.is_suspended() || status.is_true(SUSPENDED) {
        return "Suspended".to_owned();
    }
    let up = all_ready(jobset, status);
    if let Some(group) = group.filter(|group| group.phase() != pb::GroupPhase::Unspecified) {
        // The workers were released, but not all of them have reported that they run; or there is
        // no Job yet.
        let starts = group.workers_up < group.workers_expected || group.workers_expected == 0 && !up;
        return match group.phase() {
            pb::GroupPhase::InSync if starts => "Starting".to_owned(),
            phase => camel(phase.as_str_name(), "GROUP_PHASE_"),
        };
    }
    let durable = status
        .in_place_restart
        .as_ref()
        .and_then(|status| status.phase.as_ref());
    match durable {
        Some(InPlacePhase::InSync) | None if !up => "Starting".to_owned(),
        Some(phase) => phase.to_string(),
        None => "Running".to_owned(),
    }
}

fn all_ready(jobset: &JobSet, status: &JobSetStatus) -> bool {
    jobset.spec.replicated_jobs.iter().all(|job| {
        let counts = status.replicated_job(&job.name);
        counts.is_some_and(|counts| counts.ready + counts.succeeded >= job.replicas())
    })
}

/// `GROUP_PHASE_IN_SYNC` is shown as `InSync`.
fn camel(name: &str, prefix: &str) -> String {
    let words = name.strip_prefix(prefix).unwrap_or(name).split('_');
    words
        .map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            format!("{first}{}", rest.to_lowercase())
        })
        .collect()
}

fn kind(jobset: &JobSet, in_place: Option<&InPlaceRestartStatus>) -> String {
    match in_place.and_then(|status| status.kind.as_ref()) {
        Some(kind) => kind.to_string(),
        None if jobset.in_place() => "InPlace".to_owned(),
        None => "Recreate".to_owned(),
    }
}

fn messages(status: &JobSetStatus) -> Vec<String> {
    let conditions = [FAILED, COMPLETED, SUSPENDED, RESTART_BLOCKED]
        .into_iter()
        .filter(|type_| status.is_true(type_))
        .filter_map(|type_| status.condition(type_))
        .map(|condition| format!("{}: {}", condition.type_, condition.message));
    conditions.chain(gangs(status).filter_map(held)).collect()
}

/// The gangs of the current run.
fn gangs(status: &JobSetStatus) -> impl Iterator<Item = &GangStatus> {
    let gangs = status.gangs.iter();
    gangs.filter(|gang| gang.restart_attempt == status.restarts)
}

/// What keeps the pods of a gang from starting; `None` if they were scheduled.
fn held(gang: &GangStatus) -> Option<String> {
    let GangStatus { name, phase, .. } = gang;
    match &gang.message {
        Some(message) => Some(format!("gang {name}: {phase}: {message}")),
        None => (*phase != GangPhase::Scheduled).then(|| format!("gang {name}: {phase}")),
    }
}

fn last_restart(seen: &Observed, in_place: Option<&InPlaceRestartStatus>) -> Option<LastRestart> {
    let status = in_place?;
    let cause = status.cause.as_ref()?;
    // The event of an earlier restart must not be used.
    let event = history::last_restart_entry(&seen.jobset, &seen.events);
    let live = seen.group.as_ref().and_then(|group| group.last_cause.as_ref());
    let at = live
        .and_then(|cause| time::from_nanos(cause.time_unix_nanos))
        .or_else(|| event.as_ref().and_then(|entry| entry.at));
    Some(LastRestart {
        at,
        reason: cause.reason.clone(),
        message: cause
            .message
            .clone()
            .or_else(|| cause.reason.clone())
            .unwrap_or_default(),
        pod: cause.pod.clone(),
        container: cause.container.clone(),
        node: cause.node.clone(),
        exit_code: cause.exit_code,
        signal: cause.signal,
        level: status.level.as_ref().map(ToString::to_string),
        took_ms: event.and_then(|entry| entry.took_ms),
    })
}

fn replicated_jobs(seen: &Observed, status: &JobSetStatus) -> Vec<ReplicatedJob> {
    let jobs = seen.jobset.spec.replicated_jobs.iter().map(|spec| {
        let counts = status.replicated_job(&spec.name).cloned().unwrap_or_default();
        ReplicatedJob {
            name: spec.name.clone(),
            replicas: spec.replicas(),
            ready: counts.ready,
            succeeded: counts.succeeded,
            failed: counts.failed,
            suspended: counts.suspended,
            jobs: child_jobs(seen, &spec.name),
        }
    });
    jobs.collect()
}

fn child_jobs(seen: &Observed, replicated_job: &str) -> Vec<ChildJob> {
    let label = |job: &Job, key: &str| job.metadata.labels.as_ref()?.get(key).cloned();
    let mut jobs: Vec<&Job> = seen
        .jobs
        .iter()
        .filter(|job| label(job, labels::REPLICATED_JOB_NAME).as_deref() == Some(replicated_job))
        .collect();
    jobs.sort_by_key(|job| {
        let index = label(job, labels::JOB_INDEX).and_then(|index| index.parse::<u32>().ok());
        (index, job.metadata.name.clone())
    });
    jobs.into_iter().map(|job| child_job(seen, job)).collect()
}

fn child_job(seen: &Observed, job: &Job) -> ChildJob {
    let name = job.metadata.name.clone().unwrap_or_default();
    let workers = workers(seen, job, &name);
    ChildJob {
        state: job_state(job),
        workers_expected: workers.len(),
        workers_up: workers.iter().filter(|worker| worker.up).count(),
        workers,
        name,
    }
}

fn job_state(job: &Job) -> String {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let is = |type_: &str| {
        conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    let state = ["Complete", "Failed", "Suspended"]
        .into_iter()
        .find(|type_| is(type_));
    match state {
        Some(state) => state.to_owned(),
        None if job.metadata.deletion_timestamp.is_some() => "Deleting".to_owned(),
        None => "Active".to_owned(),
    }
}
