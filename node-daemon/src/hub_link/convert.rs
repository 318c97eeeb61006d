//! Border of the node protocol.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_proto::node::v1 as wire;
use tracing::warn;

use crate::health::{Access, RuntimeAccess};
use crate::worker::types::{
    AgentPhase, Desired, Epoch, Generation, Heartbeat, Incarnation, Phase, Progress, Standbys, Starts,
    TerminalRule, WorkerRestart, WorkerState,
};

/// A worker's state as it is reported.
#[must_use]
pub fn worker_state(state: WorkerState) -> wire::WorkerState {
    let phase = match state.phase {
        Phase::Agent(AgentPhase::Fresh) => wire::Phase::Fresh,
        Phase::Agent(AgentPhase::Starting) => wire::Phase::Starting,
        Phase::Agent(AgentPhase::Running) => wire::Phase::Running,
        Phase::Agent(AgentPhase::Stopping) => wire::Phase::Stopping,
        Phase::Agent(AgentPhase::Parked) => wire::Phase::Parked,
        Phase::Agent(AgentPhase::Exited(_)) => wire::Phase::Exited,
        Phase::Agent(AgentPhase::Done(_)) => wire::Phase::Done,
        Phase::Unlinked(_) => wire::Phase::Unlinked,
        Phase::Lost(_) => wire::Phase::Lost,
    };
    let exit = state.phase.exit().map(|exit| wire::Exit {
        code: exit.code,
        signal: exit.signal,
    });
    let heartbeat = match state.heartbeat {
        Heartbeat::Well => wire::Heartbeat::Unspecified,
        Heartbeat::Awaited => wire::Heartbeat::Awaited,
        Heartbeat::Missed => wire::Heartbeat::Missed,
        Heartbeat::Overdue => wire::Heartbeat::Overdue,
    };
    wire::WorkerState {
        group_uid: state.group.as_str().to_owned(),
        job: state.job,
        completion_index: state.index,
        container: state.container,
        incarnation: Some(incarnation_to(state.incarnation)),
        pod_namespace: state.namespace,
        pod_name: state.pod_name,
        phase: phase.into(),
        generation: state.generation.0,
        epoch: state.epoch.0,
        counted_restarts: state.counted_restarts,
        revision: state.revision,
        exit,
        since_unix_nanos: state.since.0,
        detail: state.detail,
        heartbeat: heartbeat.into(),
        released_generation: state.released_generation.map(|generation| generation.0),
        starts: state.starts.map(starts),
        standbys: state.standbys.map(standbys),
        progress: progress(state.progress),
    }
}

fn starts(starts: Starts) -> wire::Starts {
    wire::Starts {
        standby: starts.standby,
        cold: starts.cold,
        ahead_ms: starts.ahead_ms,
    }
}

fn standbys(standbys: Standbys) -> wire::Standbys {
    wire::Standbys {
        wanted: standbys.wanted,
        ready: standbys.ready,
        memory_kib: standbys.memory_kib,
        modules: standbys.modules,
        reason: standbys.reason,
    }
}

fn progress(progress: Progress) -> Option<wire::Progress> {
    (!progress.is_empty()).then_some(wire::Progress {
        step: progress.step,
        section: progress.section,
        error: progress.error,
    })
}

/// An incarnation, as the hub knows it.
#[must_use]
pub fn incarnation_to(incarnation: Incarnation) -> wire::Incarnation {
    wire::Incarnation {
        pod_uid: incarnation.pod.as_str().to_owned(),
        container_id: incarnation.container.as_str().to_owned(),
    }
}

/// Health of the container runtime, as it is reported.
#[must_use]
pub fn health(runtime: &RuntimeAccess) -> wire::Health {
    wire::Health {
        cri: Some(access(&runtime.cri)),
        nri: Some(access(&runtime.nri)),
    }
}

fn access(access: &Access) -> wire::Access {
    use wire::access::State;
    let (state, since, detail) = match access {
        Access::Unknown => (State::Unspecified, 0, ""),
        Access::Well(since) => (State::Well, since.0, ""),
        Access::Away(since, why) => (State::Away, since.0, why.as_str()),
    };
    wire::Access {
        state: state.into(),
        since_unix_nanos: since,
        detail: detail.to_owned(),
    }
}

/// The hub's orders for its groups. Groups with an unknown scope are left out: it would be wrong to
/// obey them in part.
#[must_use]
pub fn desired(message: wire::Desired) -> Vec<Desired> {
    message.groups.into_iter().filter_map(group).collect()
}

fn group(group: wire::Group) -> Option<Desired> {
    if !matches!(
        wire::Scope::try_from(group.scope),
        Ok(wire::Scope::Group | wire::Scope::Unspecified)
    ) {
        warn!(
            group = group.uid,
            scope = group.scope,
            "ignored desired state of an unknown scope"
        );
        return None;
    }
    let terminal_rules = group
        .terminal_rules
        .unwrap_or_default()
        .rules
        .into_iter()
        .filter_map(terminal_rule)
        .collect();
    Some(Desired {
        group: group.uid.into(),
        namespace: some(group.namespace),
        epoch: Epoch(group.epoch),
        generation: Generation(group.generation),
        counted_restarts: group.counted_restarts,
        release: group.release,
        fresh: incarnations(group.fresh),
        stale: incarnations(group.stale),
        worker_restarts: worker_restarts(group.worker_restarts),
        grace_ms: group.grace_ms,
        terminal_rules,
        heartbeat_timeout_ms: group.heartbeat_timeout_ms,
        ready_timeout_ms: group.ready_timeout_ms,
    })
}

fn incarnations(named: Vec<wire::Incarnation>) -> BTreeSet<Incarnation> {
    named.into_iter().map(incarnation).collect()
}

fn incarnation(incarnation: wire::Incarnation) -> Incarnation {
    Incarnation {
        pod: incarnation.pod_uid.into(),
        container: incarnation.container_id.into(),
    }
}

fn worker_restarts(workers: Vec<wire::WorkerRestart>) -> BTreeMap<Incarnation, WorkerRestart> {
    let workers = workers.into_iter().filter_map(|worker| {
        let restart = WorkerRestart {
            generation: Generation(worker.generation),
            release: worker.release,
        };
        Some((incarnation(worker.incarnation?), restart))
    });
    workers.collect()
}

fn terminal_rule(rule: wire::TerminalRule) -> Option<TerminalRule> {
    let negated = match rule.operator() {
        wire::terminal_rule::Operator::In => false,
        wire::terminal_rule::Operator::NotIn => true,
        wire::terminal_rule::Operator::Unspecified => {
            warn!(
                operator = rule.operator,
                "ignored an exit code rule with an unknown operator"
            );
            return None;
        }
    };
    Some(TerminalRule {
        negated,
        codes: rule.values,
        container: some(rule.container),
        job: some(rule.job),
    })
}

/// The text, unless it is empty.
fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
