//! From what a group task has shown to the wire.

use std::collections::BTreeMap;

use lockstep_api::WorkerRestartRequest;
use lockstep_core::restart::{
    Cause, Exit, Heartbeat, Identity, Incarnation, Observed, Phase, Report, RestartLevel, Worker,
};
use lockstep_proto::platform::v1 as pb;

use crate::controllers::restart::board::{Key, Snapshot};
use crate::controllers::restart::sentence;

mod dry_run;
mod history;
mod nodes;
mod stages;

pub(super) use dry_run::dry_run;
pub(super) use history::restart;
pub(super) use nodes::node;
use stages::stages;

/// The whole state of a group.
pub(super) fn group(key: &Key, state: &Snapshot, omit_workers: bool) -> pb::Group {
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
        phase: phase(state.state).into(),
        generation,
        released: state.released.0,
        restarts: state.restarts,
        max_restarts: state.observed.policy.max_restarts,
        last_cause: state.cause.as_ref().map(cause),
        workers_expected: count(workers.len()),
        workers_up: count(up),
        workers: if omit_workers { Vec::new() } else { workers },
        handled_request: state.observed.durable.handled_request.clone().unwrap_or_default(),
        handled_worker_restart: handled_worker_restart(state),
        last_level: state
            .level
            .map(|level| level.as_str().to_owned())
            .unwrap_or_default(),
        stages: stages(&state.jobset),
    }
}

/// The token of the latest request to restart some workers alone that has been acted upon.
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
        // Who was restarted alone has a higher one.
        pb::WorkerPhase::Running => worker.generation >= generation,
        pb::WorkerPhase::Done => true,
        _ => false,
    }
}

/// States of the coordinator have no other names than these.
fn phase(state: &str) -> pb::GroupPhase {
    match state {
        "Recovering" => pb::GroupPhase::Recovering,
        "InSync" => pb::GroupPhase::InSync,
        "Stopping" => pb::GroupPhase::Stopping,
        "Parked" => pb::GroupPhase::Parked,
        "Releasing" => pb::GroupPhase::Releasing,
        "Recreating" => pb::GroupPhase::Recreating,
        "Suspended" => pb::GroupPhase::Suspended,
        "Failed" => pb::GroupPhase::Failed,
        _ => pb::GroupPhase::Unspecified,
    }
}

type Newest<'s> = BTreeMap<&'s Identity, (&'s Incarnation, &'s Report)>;

/// The newest report of each worker, those of living pods before all others.
fn newest_reports(observed: &Observed) -> Newest<'_> {
    let lives = |incarnation: &Incarnation, report: &Report| {
        let worker = observed.workers.get(&report.identity);
        worker.is_some_and(|worker| worker.pods.iter().any(|pod| pod.uid == incarnation.pod_uid))
    };
    let rank = |(incarnation, report): (&Incarnation, &Report)| {
        let ended = matches!(report.phase, Phase::Lost(_));
        (lives(incarnation, report), !ended, report.since)
    };
    let mut newest = Newest::new();
    for candidate in &observed.reports {
        let known = newest.entry(&candidate.1.identity).or_insert(candidate);
        if rank(candidate) > rank(*known) {
            *known = candidate;
        }
    }
    newest
}

fn worker(identity: &Identity, expected: &Worker, newest: Option<(&Incarnation, &Report)>) -> pb::Worker {
    // A pod that has taken the place of another has not been heard of yet.
    let replaced = |incarnation: &Incarnation| {
        !expected.pods.is_empty() && expected.pods.iter().all(|pod| pod.uid != incarnation.pod_uid)
    };
    let report = newest
        .filter(|(incarnation, _)| !replaced(incarnation))
        .map(|(_, report)| report);
    let pod = expected.pods.first();
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
