//! Turns API objects into what the coordinator decides on: the expected workers, and the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use lockstep_api::{GangPhase, JobSet, ReplicatedJob, annotations, annotations::RestartScope, labels};
use lockstep_mutants::mutant;

use super::policy::keeps_pods;
use super::{EscalateAfter, Identity, PodFact, Policy, RestartLevel, Scope, TerminalRule, UnixNanos, Worker};
use crate::gang;
use crate::jobset::elastic;
use crate::jobset::in_place;
use crate::jobset::jobs::{completed_indexes, failed_indexes, has_condition};
use crate::jobset::limits;
use crate::jobset::pod::PodSummary;
use crate::ray::names as ray;

/// The Job controller's first and longest wait before it replaces a failed pod, milliseconds.
const BACK_OFF_MS: (u64, u64) = (10_000, 600_000);

/// The part of an observation that comes from the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    /// The workers of the created Jobs.
    pub workers: BTreeMap<Identity, Worker>,
    /// Live pods from before the last recreation.
    pub old_pods: usize,
    /// One of them.
    pub old_pod: Option<PodFact>,
    /// The replicatedJobs whose Jobs have all finished, and those that have none on purpose.
    pub finished_stages: BTreeSet<String>,
    /// The Jobs that a replicatedJob without replicas would have.
    pub unwanted_jobs: BTreeSet<String>,
    /// Jobs whose gang is not bound yet.
    pub waiting_jobs: BTreeSet<String>,
    /// Every pod of the current recreation, live or terminal.
    pub pods: BTreeMap<String, Placed>,
    /// Limits and codes.
    pub policy: Policy,
}

/// The node and the place of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placed {
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Its Job and completion index, as in [`super::PodPlace`].
    pub place: Option<(String, u32)>,
}

/// Joins a JobSet with its Jobs and pods. A JobSet over the limits has no expected workers.
/// `restart_attempt` is `status.restarts` as this leader knows it, which may be ahead of `jobset`.
#[must_use]
pub fn gather<'a>(
    jobset: &JobSet,
    jobs: &[Arc<Job>],
    pods: impl IntoIterator<Item = &'a PodSummary>,
    restart_attempt: i32,
) -> Gathered {
    let mut gathered = Gathered {
        policy: policy(jobset, jobs),
        ..Gathered::default()
    };
    // It is not a group: nothing in it restarts.
    if limits::is_over(jobset) {
        return gathered;
    }
    let current: BTreeMap<&str, &Job> = jobs
        .iter()
        .filter(|job| attempt(job.metadata.labels.as_ref()) == Some(restart_attempt))
        .filter_map(|job| Some((job.metadata.name.as_deref()?, job.as_ref())))
        .collect();
    for replicated in &jobset.spec.replicated_jobs {
        stage(jobset, replicated, &current, restart_attempt, &mut gathered);
    }
    let mut changed = BTreeMap::new();
    for pod in pods {
        place(pod, restart_attempt, &current, &mut gathered, &mut changed);
    }
    without_agents(&mut gathered, changed);
    gathered
}

/// Workers of pods that a policy or a webhook has changed; true if such a pod is alive.
type Changed = BTreeMap<Identity, bool>;

/// A worker that lacks its agent cannot restart in place: the kubelet does not wait for a release.
fn without_agents(gathered: &mut Gathered, changed: Changed) {
    for (identity, lives) in changed {
        // Perhaps only the end of a pod is seen. A live pod decides what its worker is now.
        if let Some(worker) = gathered.workers.get_mut(&identity)
            && worker.level == RestartLevel::Process
            && (lives || worker.pods.is_empty())
        {
            worker.level = RestartLevel::Container;
            worker.scope = Scope::Group;
            worker.stays_down = true;
        }
    }
}

/// The workers of one replicatedJob, once its first Job exists. Workers of missing Jobs are
/// expected too.
fn stage(
    jobset: &JobSet,
    replicated: &ReplicatedJob,
    current: &BTreeMap<&str, &Job>,
    restart_attempt: i32,
    gathered: &mut Gathered,
) {
    let names: Vec<String> = (0..i64::from(replicated.replicas()))
        .map(|index| jobset.job_name(&replicated.name, index))
        .collect();
    if names.is_empty() {
        gathered.finished_stages.insert(replicated.name.clone());
        gathered
            .unwanted_jobs
            .insert(jobset.job_name(&replicated.name, 0));
        return;
    }
    if !names.iter().any(|name| current.contains_key(name.as_str())) {
        return;
    }
    // No worker runs before the gang is bound: until then its Jobs do not count.
    if !has_gang(jobset, replicated, restart_attempt) {
        gathered.waiting_jobs.extend(names);
        return;
    }
    let Some(spec) = replicated.template.spec.as_ref() else {
        return;
    };
    let workers = workers_of(jobset, replicated, spec, &names, current);
    gathered.workers.extend(workers);
    if names.iter().all(|name| {
        current
            .get(name.as_str())
            .is_some_and(|job| has_condition(job, "Complete"))
    }) {
        gathered.finished_stages.insert(replicated.name.clone());
    }
}

/// The workers of the Jobs with these names, including missing Jobs.
fn workers_of(
    jobset: &JobSet,
    replicated: &ReplicatedJob,
    spec: &JobSpec,
    names: &[String],
    current: &BTreeMap<&str, &Job>,
) -> Vec<(Identity, Worker)> {
    let gang = jobset.spec.gang.as_ref();
    let minimum = gang.map(|gang| gang.minimums(&jobset.spec.replicated_jobs));
    let minimum = minimum.and_then(|minimums| minimums.get(replicated.name.as_str()).copied());
    let containers = in_place::workers(jobset, &spec.template);
    let containers: Vec<Arc<str>> = containers.into_iter().map(Arc::from).collect();
    let made = names.iter().filter_map(|name| current.get(name.as_str()));
    let level = made.filter_map(|job| mark(job)).next().unwrap_or_default();
    let width = spec.completions.or(spec.parallelism).unwrap_or(1);
    let keeps_pod = keeps_pods(spec);
    // The number of workers changes: a new worker is not a lost one.
    let elastic = elastic::is_of_ray_cluster(jobset) && replicated.name != ray::HEAD;
    let mut workers = Vec::new();
    for (job_index, name) in (0_i64..).zip(names) {
        let job = current.get(name.as_str());
        let name: Arc<str> = name.as_str().into();
        let ending =
            job.is_some_and(|job| has_condition(job, "FailureTarget") || has_condition(job, "Failed"));
        let completed = job.map(|job| completed_indexes(job)).unwrap_or_default();
        let failed = job.map(|job| failed_indexes(job)).unwrap_or_default();
        // By its own successPolicy it may succeed before all of its pods do.
        let succeeded =
            job.is_some_and(|job| has_condition(job, "SuccessCriteriaMet") || has_condition(job, "Complete"));
        let back_off_ms = job.map_or(0, |job| back_off_ms(job));
        let ends_at = job.and_then(|job| ends_at(job, spec.active_deadline_seconds?));
        // Its pods keep the level that they were created with, whatever the JobSet says now.
        let level = job.and_then(|job| mark(job)).unwrap_or(level);
        // Worker restarts need agents.
        let scope = match replicated.restart_scope() {
            Ok(RestartScope::Worker) if level == RestartLevel::Process => Scope::Worker,
            _ => Scope::Group,
        };
        for index in 0..u32::try_from(width).unwrap_or(0) {
            let ordinal = job_index * i64::from(width) + i64::from(index);
            let completed = succeeded || completed.iter().any(|range| range.contains(&index));
            let failed = failed.iter().any(|range| range.contains(&index));
            for container in &containers {
                let identity = Identity {
                    job: Arc::clone(&name),
                    index,
                    container: Arc::clone(container),
                };
                let worker = Worker {
                    stage: replicated.name.clone(),
                    pods: Vec::new(),
                    completed,
                    failed,
                    ending,
                    ends_early: spec.success_policy.is_some(),
                    keeps_pod,
                    ends_at,
                    back_off_ms,
                    optional: elastic || minimum.is_some_and(|minimum| ordinal >= i64::from(minimum)),
                    level,
                    stays_down: false,
                    scope,
                };
                workers.push((identity, worker));
            }
        }
    }
    workers
}

/// True if the workers of a replicatedJob may run: it has no gang, or the gang is bound.
fn has_gang(jobset: &JobSet, replicated: &ReplicatedJob, restart_attempt: i32) -> bool {
    mutant!(StartPartOfGang => true);
    if jobset.spec.gang.is_none() {
        return true;
    }
    let name = gang::gang_name(jobset, &replicated.name);
    let mut gangs = jobset.status.iter().flat_map(|status| &status.gangs);
    gangs.any(|gang| {
        gang.name == name && gang.restart_attempt == restart_attempt && gang.phase == GangPhase::Scheduled
    })
}

/// The Job controller's wait before it replaces a failed pod: 10 s, doubled at each failure, at
/// most 10 min. It resets after a success and when it restarts, which the status does not show, so
/// this may be too long.
fn back_off_ms(job: &Job) -> u64 {
    let failed = job.status.as_ref().and_then(|status| status.failed).unwrap_or(0);
    let doublings = u32::try_from(failed).unwrap_or(0).saturating_sub(1);
    BACK_OFF_MS
        .0
        .saturating_mul(2_u64.saturating_pow(doublings))
        .min(BACK_OFF_MS.1)
}

/// The deadline of a Job that may be active for this many seconds.
fn ends_at(job: &Job, seconds: i64) -> Option<UnixNanos> {
    let started = job.status.as_ref()?.start_time.as_ref()?.0;
    let nanos = i64::try_from(started.as_nanosecond()).ok()?;
    Some(UnixNanos(
        nanos.saturating_add(seconds.saturating_mul(1_000_000_000)),
    ))
}

/// Adds one pod. A pod of no Job, or of a former Job (perhaps recreated under the same name),
/// blocks new workers while it is alive: its worker may still run. It says nothing about the work
/// of the current Job.
fn place(
    pod: &PodSummary,
    restart_attempt: i32,
    current: &BTreeMap<&str, &Job>,
    gathered: &mut Gathered,
    changed: &mut Changed,
) {
    let live = !pod.is_terminal();
    let Some(attempt) = pod.restart_attempt else {
        return;
    };
    let fact = PodFact {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        node: pod.node.clone(),
        running: pod.running,
        node_lost: pod.node_lost,
        deleting: pod.deleting,
    };
    if attempt < restart_attempt {
        if live {
            gathered.old_pods += 1;
            let known = gathered.old_pod.take();
            gathered.old_pod = Some(known.filter(|known| known.name < fact.name).unwrap_or(fact));
        }
        return;
    }
    let placed = Placed {
        node: pod.node.clone(),
        place: pod.job.clone().zip(pod.index),
    };
    gathered.pods.insert(pod.uid.clone(), placed);
    if attempt > restart_attempt {
        // Its Jobs were recreated, but this leader has not read that yet, nor the generation.
        return;
    }
    let (Some(job), Some(index)) = (&pod.job, pod.index) else {
        return;
    };
    let from = Identity {
        job: job.as_str().into(),
        index,
        container: "".into(),
    };
    let present = current.get(job.as_str());
    let present = present.and_then(|job| job.metadata.uid.as_ref());
    let is_present = pod
        .job_uid
        .as_ref()
        .is_some_and(|controller| present.is_none_or(|uid| uid == controller));
    let of_pod = |identity: &Identity| *identity.job == **job && identity.index == index;
    for (identity, worker) in gathered
        .workers
        .range_mut(from..)
        .take_while(|(identity, _)| of_pod(identity))
    {
        worker.completed |= pod.agent.succeeded && is_present;
        if live {
            worker.pods.push(fact.clone());
        }
        if pod.obstacle.is_some() && (live || is_present) {
            *changed.entry(identity.clone()).or_default() |= live;
        }
    }
}

/// How the workers of a Job's pods restart in place.
fn mark(job: &Job) -> Option<RestartLevel> {
    let template = job.spec.as_ref()?.template.metadata.as_ref()?;
    let mark = template.annotations.as_ref()?.get(annotations::IN_PLACE)?;
    Some(match mark.as_str() {
        annotations::IN_PLACE_PLAIN => RestartLevel::Container,
        _ => RestartLevel::Process,
    })
}

pub(super) fn attempt(labels: Option<&BTreeMap<String, String>>) -> Option<i32> {
    labels?.get(labels::RESTART_ATTEMPT)?.parse().ok()
}

fn policy(jobset: &JobSet, jobs: &[Arc<Job>]) -> Policy {
    let timeout = jobset
        .in_place_timeout()
        .unwrap_or(annotations::DEFAULT_IN_PLACE_TIMEOUT);
    let max_backoff = jobset.max_backoff().unwrap_or(annotations::DEFAULT_MAX_BACKOFF);
    let mut terminal_rules: Vec<TerminalRule> = Vec::new();
    for job in jobs {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let rules = job
            .spec
            .as_ref()
            .and_then(|spec| spec.pod_failure_policy.as_ref());
        terminal_rules.extend(
            rules
                .iter()
                .flat_map(|policy| &policy.rules)
                .filter_map(|rule| TerminalRule::of(name, rule)),
        );
    }
    Policy {
        max_restarts: u32::try_from(jobset.max_restarts()).unwrap_or(0),
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        max_backoff_ms: u64::try_from(max_backoff.as_millis()).unwrap_or(u64::MAX),
        terminal_rules,
        escalate_after: jobset.escalate_after().ok().flatten().map(|after| EscalateAfter {
            failures: after.failures,
            within_ms: u64::try_from(after.within.as_millis()).unwrap_or(u64::MAX),
        }),
        ..Policy::default()
    }
}
