//! Conversion to the wire: groups with their past restarts and their start-up graphs, and nodes.

use std::collections::BTreeMap;

use lockstep_api::{JobSet, WorkerRestartRequest};
use lockstep_core::jobset::in_place::Agents;
use lockstep_core::jobset::stages::{self, Dependency, Milestone, StageState};
use lockstep_core::restart::{
    Cause, Exit, GroupPhase, Heartbeat, Identity, Incarnation, Observed, Phase, Report, RestartLevel, Scope,
    Standbys, Starts, UnixNanos, Worker,
};
use lockstep_proto::platform::v1 as pb;

use crate::controllers::restart::board::history::{Entry as HistoryEntry, Outcome};
use crate::controllers::restart::board::{Key, Snapshot};
use crate::controllers::restart::{Phase as TimelinePhase, phases, sentence};
use crate::hub::{Access, Daemon};

mod dry_run;

pub(super) use dry_run::dry_run;

/// How much of a group an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Full,
    WithoutWorkers,
}

impl Detail {
    /// The detail that a request with this `omit_workers` asks for.
    pub(super) fn asked(omit_workers: bool) -> Self {
        match omit_workers {
            true => Self::WithoutWorkers,
            false => Self::Full,
        }
    }
}

/// The whole state of a group.
pub(super) fn group(key: &Key, state: &Snapshot, detail: Detail) -> pb::Group {
    let newest = newest_reports(&state.observed);
    let workers: Vec<pb::Worker> = state
        .observed
        .workers
        .iter()
        .map(|(identity, expected)| worker(identity, expected, newest.get(identity).copied()))
        .collect();
    let generation = state.generation.0;
    let up = workers.iter().filter(|worker| is_up(worker, generation)).count();
    pb::Group {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        uid: state.jobset.uid_str().to_owned(),
        kind: kind(state).into(),
        phase: phase(state.phase).into(),
        generation,
        released: state.released.0,
        restarts: state.restarts,
        max_restarts: state.observed.policy.max_restarts,
        last_cause: state.cause.as_ref().map(cause),
        workers_expected: count(workers.len()),
        workers_up: count(up),
        workers: match detail {
            Detail::Full => workers,
            Detail::WithoutWorkers => Vec::new(),
        },
        handled_request: state.observed.durable.handled_request.clone().unwrap_or_default(),
        handled_worker_restart: handled_worker_restart(state),
        last_level: state
            .level
            .map(|level| level.as_str().to_owned())
            .unwrap_or_default(),
        stages: stages(&state.jobset),
    }
}

/// The token of the latest handled request to restart some workers.
fn handled_worker_restart(state: &Snapshot) -> String {
    let handled = state.observed.durable.handled_worker_restart.as_ref();
    let request = handled.and_then(|handled| handled.parse().ok());
    request
        .map(|request: WorkerRestartRequest| request.token)
        .unwrap_or_default()
}

/// One worker without an agent makes the group Plain.
fn kind(state: &Snapshot) -> pb::Kind {
    let plain = |worker: &Worker| worker.level == RestartLevel::Container;
    if state.observed.workers.values().any(plain) {
        pb::Kind::Plain
    } else {
        pb::Kind::Supervised
    }
}

fn count(workers: usize) -> u32 {
    u32::try_from(workers).unwrap_or(u32::MAX)
}

fn is_up(worker: &pb::Worker, generation: u64) -> bool {
    match worker.phase() {
        // A worker restart gives its worker a higher generation.
        pb::WorkerPhase::Running => worker.generation >= generation,
        pb::WorkerPhase::Done => true,
        _ => false,
    }
}

fn phase(phase: GroupPhase) -> pb::GroupPhase {
    match phase {
        GroupPhase::Recovering => pb::GroupPhase::Recovering,
        GroupPhase::InSync => pb::GroupPhase::InSync,
        GroupPhase::Stopping => pb::GroupPhase::Stopping,
        GroupPhase::Parked => pb::GroupPhase::Parked,
        GroupPhase::Releasing => pb::GroupPhase::Releasing,
        GroupPhase::Recreating => pb::GroupPhase::Recreating,
        GroupPhase::Suspended => pb::GroupPhase::Suspended,
        GroupPhase::Failed => pb::GroupPhase::Failed,
    }
}

type Newest<'s> = BTreeMap<&'s Identity, (&'s Incarnation, &'s Report)>;

/// The newest report of each worker, those of living pods before all others.
fn newest_reports(observed: &Observed) -> Newest<'_> {
    let lives = |incarnation: &Incarnation, report: &Report| {
        let worker = observed.workers.get(&report.identity);
        worker.is_some_and(|worker| worker.pods.iter().any(|pod| pod.uid == incarnation.pod_uid))
    };
    let freshness = |(incarnation, report): (&Incarnation, &Report)| {
        let ended = matches!(report.phase, Phase::Lost(_));
        (lives(incarnation, report), !ended, report.since)
    };
    let mut newest = Newest::new();
    for candidate in &observed.reports {
        let known = newest.entry(&candidate.1.identity).or_insert(candidate);
        if freshness(candidate) > freshness(*known) {
            *known = candidate;
        }
    }
    newest
}

fn worker(identity: &Identity, expected: &Worker, newest: Option<(&Incarnation, &Report)>) -> pb::Worker {
    // A pod that has replaced another has no report yet.
    let replaced = |incarnation: &Incarnation| {
        !expected.pods.is_empty() && expected.pods.iter().all(|pod| pod.uid != incarnation.pod_uid)
    };
    let report = newest
        .filter(|(incarnation, _)| !replaced(incarnation))
        .map(|(_, report)| report);
    let pod = expected.pods.first();
    let standby = report.and_then(|report| report.standby.as_deref());
    // What is known of a worker that waits is of its last attempt.
    let running = report.filter(|report| report.phase == Phase::Running);
    let progress = running.and_then(|report| report.progress.as_deref());
    let phase = match report {
        _ if expected.completed || expected.failed => pb::WorkerPhase::Done,
        None => pb::WorkerPhase::Pending,
        Some(report) => worker_phase(report),
    };
    pb::Worker {
        identity: Some(worker_identity(identity)),
        pod: match (pod, report) {
            (Some(pod), _) => pod.name.clone(),
            (None, Some(report)) => report.pod_name.clone(),
            (None, None) => String::new(),
        },
        node: match (pod, report) {
            (Some(pod), _) => pod.node.clone().unwrap_or_default(),
            (None, Some(report)) => report.node.clone(),
            (None, None) => String::new(),
        },
        phase: phase.into(),
        generation: report.map_or(0, |report| report.generation.0),
        since_unix_nanos: report.map_or(0, |report| report.since.0),
        starts: standby.and_then(|standby| standby.starts).map(starts),
        standbys: standby
            .and_then(|standby| standby.standbys.as_ref())
            .map(standbys),
        step: progress.and_then(|progress| progress.step),
        section: progress.map_or_else(String::new, |progress| progress.section.clone()),
    }
}

fn starts(starts: Starts) -> pb::Starts {
    pb::Starts {
        standby: starts.standby,
        cold: starts.cold,
        ahead_ms: starts.ahead_ms,
    }
}

fn standbys(standbys: &Standbys) -> pb::Standbys {
    pb::Standbys {
        wanted: standbys.wanted,
        ready: standbys.ready,
        memory_kib: standbys.memory_kib,
        modules: standbys.modules,
        reason: standbys.reason.clone(),
    }
}

fn worker_phase(report: &Report) -> pb::WorkerPhase {
    match (report.phase, report.heartbeat) {
        (Phase::Fresh, _) => pb::WorkerPhase::Fresh,
        (Phase::Starting, _) => pb::WorkerPhase::Starting,
        (Phase::Running, Heartbeat::Well) => pb::WorkerPhase::Running,
        (Phase::Running, Heartbeat::Awaited | Heartbeat::Overdue) => pb::WorkerPhase::AwaitingHeartbeat,
        (Phase::Running, Heartbeat::Missed) => pb::WorkerPhase::Hung,
        (Phase::Stopping, _) => pb::WorkerPhase::Stopping,
        (Phase::Parked, _) => pb::WorkerPhase::Parked,
        (Phase::Exited(_), _) => pb::WorkerPhase::Exited,
        (Phase::Done, _) => pb::WorkerPhase::Done,
        (Phase::Unlinked, _) => pb::WorkerPhase::Unlinked,
        (Phase::Lost(_), _) => pb::WorkerPhase::Lost,
    }
}

fn worker_identity(identity: &Identity) -> pb::WorkerIdentity {
    pb::WorkerIdentity {
        job: identity.job.to_string(),
        completion_index: identity.index,
        container: identity.container.to_string(),
    }
}

fn cause(cause: &Cause) -> pb::Cause {
    pb::Cause {
        reason: cause.reason.as_str().to_owned(),
        worker: cause.identity.as_ref().map(worker_identity),
        pod: cause.pod.clone(),
        node: cause.node.clone(),
        exit: cause.exit.map(|Exit { code, signal }| pb::Exit { code, signal }),
        time_unix_nanos: cause.at.map_or(0, |at| at.0),
        message: sentence(cause),
    }
}

/// One restart.
pub(super) fn restart(entry: &HistoryEntry) -> pb::Restart {
    let (outcome, timeline) = match &entry.outcome {
        Outcome::UnderWay => (pb::RestartOutcome::UnderWay, None),
        Outcome::Done(timeline) => (pb::RestartOutcome::Done, Some(timeline.as_ref())),
        Outcome::Superseded => (pb::RestartOutcome::Superseded, None),
    };
    let scope = match entry.scope {
        Scope::Group => pb::RestartScope::Group,
        Scope::Worker => pb::RestartScope::Worker,
    };
    let since = |phase: TimelinePhase| pb::RestartPhase {
        name: phase.name.to_owned(),
        begin_ms: millis(entry.begun, phase.from),
        duration_ms: millis(phase.from, phase.to),
    };
    pb::Restart {
        generation: entry.generation.0,
        scope: scope.into(),
        cause: Some(cause(&entry.cause)),
        level: entry
            .level
            .map(|level| level.as_str().to_owned())
            .unwrap_or_default(),
        outcome: outcome.into(),
        begun_unix_nanos: entry.begun.0,
        ended_unix_nanos: timeline.map_or(0, |timeline| timeline.running_at.0),
        phases: timeline.into_iter().flat_map(phases).map(since).collect(),
        workers: timeline.map_or(0, |timeline| count(timeline.workers)),
        replaced_pods: timeline.map_or(0, |timeline| count(timeline.replaced)),
        from_standbys: timeline.map_or(0, |timeline| count(timeline.from_standbys)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact for a hundred days")]
fn millis(from: UnixNanos, to: UnixNanos) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e6
}

/// What a daemon reports about its node, and the restart level that follows for this kind of
/// agents.
pub(super) fn node(daemon: Daemon, agents: &Agents) -> pb::Node {
    let level = daemon.health.level(agents);
    pb::Node {
        name: daemon.node,
        daemon_version: daemon.version,
        protocol: daemon.protocol,
        level: level.map(|level| level.as_str().to_owned()).unwrap_or_default(),
        cri: Some(access(daemon.health.cri)),
        nri: Some(access(daemon.health.nri)),
    }
}

fn access(access: Access) -> pb::RuntimeAccess {
    use pb::RuntimeAccessState as State;
    let (state, since, detail) = match access {
        Access::Unknown => (State::Unspecified, 0, String::new()),
        Access::Well(since) => (State::Well, since.0, String::new()),
        Access::Away(since, why) => (State::Away, since.0, why),
    };
    pb::RuntimeAccess {
        state: state.into(),
        since_unix_nanos: since,
        detail,
    }
}

/// The replicatedJobs of a JobSet, in the order of the graph.
fn stages(jobset: &JobSet) -> Vec<pb::Stage> {
    stages::stages(jobset).iter().map(stage).collect()
}

fn stage(stage: &StageState<'_>) -> pb::Stage {
    let counts = &stage.counts;
    let count = |jobs: i32| u32::try_from(jobs).unwrap_or(0);
    pb::Stage {
        name: stage.name.to_owned(),
        depends_on: stage.depends_on.iter().map(dependency).collect(),
        started: stage.has_started(),
        jobs_expected: count(stage.expected),
        jobs_ready: count(counts.ready),
        jobs_succeeded: count(counts.succeeded),
        jobs_failed: count(counts.failed),
        jobs_active: count(counts.active),
        jobs_suspended: count(counts.suspended),
    }
}

fn dependency(dependency: &Dependency<'_>) -> pb::Dependency {
    let until = match dependency.until {
        Milestone::Ready => pb::Milestone::Ready,
        Milestone::Complete => pb::Milestone::Complete,
        Milestone::Failed => pb::Milestone::Failed,
        Milestone::Active => pb::Milestone::Active,
    };
    pb::Dependency {
        stage: dependency.on.to_owned(),
        until: until.into(),
        reached: dependency.reached,
    }
}
