//! Conversion between the wire and the types of the core.

use std::sync::Arc;

use lockstep_core::restart::{
    Desired, Epoch, Exit, Generation, Heartbeat, Identity, Incarnation, Phase, Progress, Report,
    StandbyReport, Standbys, Starts, UnixNanos, WorkerRestart,
};
use lockstep_proto::node::v1 as pb;
use lockstep_protocol::beginning;

use super::health::{Access, Health};
use super::report_limits::{self, ReportLimit};

/// Longest text of a daemon that is kept, in bytes. No daemon sends longer ones.
const LONGEST: usize = 256;

/// What a node needs to know about a group besides its desired generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPolicy {
    /// Namespace of the JobSet. Pods of other namespaces learn nothing about it.
    pub namespace: String,
    /// Time between SIGTERM and SIGKILL at a restart, milliseconds.
    pub grace_ms: u32,
    /// Which exit codes of a worker are terminal: its agent exits with them as well.
    pub terminal_rules: Vec<TerminalRule>,
    /// Longest time between two heartbeats of a worker, milliseconds; 0: none are required.
    pub heartbeat_timeout_ms: u32,
    /// How long a worker may take from its start to its first heartbeat, milliseconds; 0: without a
    /// limit.
    pub ready_timeout_ms: u32,
}

/// Which exit codes are terminal, and for which workers: one podFailurePolicy rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalRule {
    /// Child Job.
    pub job: String,
    /// Container, empty for every container.
    pub container: String,
    /// True if the rule matches all codes except these.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
}

/// The newest state of an incarnation, read from the wire.
pub(super) struct Reported {
    pub(super) group: String,
    /// Namespace of the pod, as the node reports it.
    pub(super) namespace: String,
    pub(super) incarnation: Incarnation,
    pub(super) report: Report,
    pub(super) revision: u64,
}

/// Reads one worker state.
///
/// # Errors
/// If the state does not identify its worker, or is longer than what is kept.
pub(super) fn report_from(node: &str, mut state: pb::WorkerState) -> Result<Reported, ReportLimit> {
    report_limits::check_lengths(&state)?;
    let incarnation = state.incarnation.take().and_then(incarnation_from);
    let incarnation = incarnation.ok_or(ReportLimit::Incomplete)?;
    let exit = state.exit.map_or(Exit::default(), |exit| Exit {
        code: exit.code,
        signal: exit.signal,
    });
    let phase = match state.phase() {
        pb::Phase::Unspecified => return Err(ReportLimit::Incomplete),
        pb::Phase::Fresh => Phase::Fresh,
        pb::Phase::Starting => Phase::Starting,
        pb::Phase::Running => Phase::Running,
        pb::Phase::Stopping => Phase::Stopping,
        pb::Phase::Parked => Phase::Parked,
        pb::Phase::Exited => Phase::Exited(exit),
        pb::Phase::Done => Phase::Done,
        pb::Phase::Unlinked => Phase::Unlinked,
        pb::Phase::Lost => Phase::Lost(exit),
    };
    if state.group_uid.is_empty() || state.job.is_empty() || state.container.is_empty() {
        return Err(ReportLimit::Incomplete);
    }
    let heartbeat = match state.heartbeat() {
        pb::Heartbeat::Unspecified => Heartbeat::Well,
        pb::Heartbeat::Awaited => Heartbeat::Awaited,
        pb::Heartbeat::Missed => Heartbeat::Missed,
        pb::Heartbeat::Overdue => Heartbeat::Overdue,
    };
    let standby = standby_from(state.starts, state.standbys.take());
    let progress = state.progress.take().and_then(progress_from);
    let report = Report {
        identity: Identity {
            job: state.job.into(),
            index: state.completion_index,
            container: state.container.into(),
        },
        node: node.to_owned(),
        pod_name: state.pod_name,
        phase,
        generation: Generation(state.generation),
        counted_restarts: u32::try_from(state.counted_restarts).unwrap_or(u32::MAX),
        since: UnixNanos(state.since_unix_nanos),
        heartbeat,
        released_generation: state.released_generation.map(Generation),
        standby,
        progress,
    };
    Ok(Reported {
        group: state.group_uid,
        namespace: state.pod_namespace,
        incarnation,
        report,
        revision: state.revision,
    })
}

/// Reads how a worker was started, and what is started ahead for it.
fn standby_from(starts: Option<pb::Starts>, standbys: Option<pb::Standbys>) -> Option<Arc<StandbyReport>> {
    if starts.is_none() && standbys.is_none() {
        return None;
    }
    let starts = starts.map(|starts| Starts {
        standby: starts.standby,
        cold: starts.cold,
        ahead_ms: starts.ahead_ms,
    });
    let standbys = standbys.map(|standbys| Standbys {
        wanted: standbys.wanted,
        ready: standbys.ready,
        memory_kib: standbys.memory_kib,
        modules: standbys.modules,
        reason: standbys.reason,
    });
    Some(Arc::new(StandbyReport {
        starts: starts.map(Starts::bounded),
        standbys: standbys.map(Standbys::bounded),
    }))
}

/// Reads what a worker says of its work, if it has said anything.
fn progress_from(progress: pb::Progress) -> Option<Arc<Progress>> {
    let pb::Progress { step, section, error } = progress;
    let progress = Progress { step, section, error }.bounded();
    (!progress.is_empty()).then(|| Arc::new(progress))
}

/// Reads what a daemon reports about its node. Older daemons report nothing.
pub(super) fn health_from(health: Option<pb::Health>) -> Health {
    let health = health.unwrap_or_default();
    Health {
        cri: access_from(health.cri),
        nri: access_from(health.nri),
    }
}

fn access_from(access: Option<pb::Access>) -> Access {
    use pb::access::State;
    let access = access.unwrap_or_default();
    let since = UnixNanos(access.since_unix_nanos);
    match access.state() {
        State::Unspecified => Access::Unknown,
        State::Well => Access::Well(since),
        State::Away => Access::Away(since, text_from(access.detail)),
    }
}

/// A text of a daemon for people: at most [`LONGEST`] bytes, without control characters.
pub(super) fn text_from(text: String) -> String {
    beginning(text, LONGEST)
}

/// The incarnation, if the message names one.
pub(super) fn incarnation_from(incarnation: pb::Incarnation) -> Option<Incarnation> {
    let named = !incarnation.pod_uid.is_empty() && !incarnation.container_id.is_empty();
    named.then_some(Incarnation {
        pod_uid: incarnation.pod_uid,
        container_id: incarnation.container_id,
    })
}

/// The incarnations on one node that a group's desired state names.
#[derive(Default)]
pub(super) struct NamedOnNode {
    /// Incarnations that may start for the first time.
    pub(super) fresh: Vec<Incarnation>,
    /// Incarnations that started before the restart began, and are restarted like the others.
    pub(super) stale: Vec<Incarnation>,
    /// Incarnations that are restarted without their group.
    pub(super) worker_restarts: Vec<(Incarnation, WorkerRestart)>,
}

/// The message for one node: the desired state of the group, and the incarnations on that node that
/// it names.
pub(super) fn group_to(
    uid: &str,
    epoch: Epoch,
    desired: &Desired,
    policy: &GroupPolicy,
    named: NamedOnNode,
) -> pb::Group {
    pb::Group {
        uid: uid.to_owned(),
        namespace: policy.namespace.clone(),
        epoch: epoch.0,
        generation: desired.generation.0,
        counted_restarts: u64::from(desired.counted_restarts),
        scope: pb::Scope::Group.into(),
        release: desired.release,
        fresh: named.fresh.into_iter().map(incarnation_to).collect(),
        stale: named.stale.into_iter().map(incarnation_to).collect(),
        grace_ms: policy.grace_ms,
        terminal_rules: Some(pb::TerminalRules {
            rules: policy.terminal_rules.iter().map(rule_to).collect(),
        }),
        heartbeat_timeout_ms: policy.heartbeat_timeout_ms,
        ready_timeout_ms: policy.ready_timeout_ms,
        worker_restarts: named.worker_restarts.into_iter().map(worker_restart_to).collect(),
    }
}

fn worker_restart_to((incarnation, restart): (Incarnation, WorkerRestart)) -> pb::WorkerRestart {
    pb::WorkerRestart {
        incarnation: Some(incarnation_to(incarnation)),
        generation: restart.generation.0,
        release: restart.release,
    }
}

fn incarnation_to(incarnation: Incarnation) -> pb::Incarnation {
    pb::Incarnation {
        pod_uid: incarnation.pod_uid,
        container_id: incarnation.container_id,
    }
}

fn rule_to(rule: &TerminalRule) -> pb::TerminalRule {
    use pb::terminal_rule::Operator;
    let operator = if rule.negated {
        Operator::NotIn
    } else {
        Operator::In
    };
    pb::TerminalRule {
        operator: operator.into(),
        values: rule.codes.clone(),
        container: rule.container.clone(),
        job: rule.job.clone(),
    }
}

#[cfg(test)]
mod tests;
