//! Between the wire's types and the agent's own. Generated types stop here and in [`crate::link`].

use std::time::Duration;

use lockstep_proto::agent::v1 as wire;

use crate::args::Args;
use crate::machine::{
    Epoch, Exit, Generation, Heartbeat, Phase, Progress, Standbys, Starts, Status, Target, TerminalCodes,
};

/// Longest `detail` on the wire, in bytes.
const MAX_DETAIL: usize = 1024;

/// An order. A grace of 0 stands for `grace_default`.
pub(crate) fn target(wire: wire::Target, grace_default: Duration) -> Target {
    let grace = match wire.grace_ms {
        0 => grace_default,
        ms => Duration::from_millis(ms.into()),
    };
    Target {
        epoch: Epoch(wire.epoch),
        generation: Generation(wire.generation),
        counted_restarts: wire.counted_restarts,
        release: wire.release,
        start_fresh: wire.start_fresh,
        grace,
        terminal_codes: wire
            .terminal_codes
            .into_iter()
            .map(|codes| TerminalCodes {
                negated: codes.negated,
                codes: codes.codes,
            })
            .collect(),
        heartbeat_timeout: Duration::from_millis(wire.heartbeat_timeout_ms.into()),
        ready_timeout: Duration::from_millis(wire.ready_timeout_ms.into()),
    }
}

/// The first message of a connection.
pub(crate) fn register(args: &Args, status: &Status) -> wire::AgentMessage {
    let fresh = status.phase == Phase::Fresh;
    message(wire::agent_message::Kind::Register(wire::Register {
        protocol: lockstep_proto::AGENT_PROTOCOL,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        container: args.container.clone(),
        container_id: args.container_id.clone(),
        epoch: status.epoch.0,
        generation: (!fresh).then_some(status.generation.0),
    }))
}

/// The state, in full.
pub(crate) fn state(status: &Status) -> wire::AgentMessage {
    let exit = match status.phase {
        Phase::Exited(exit) => exit,
        _ => Exit::Code(0),
    };
    let mut detail = status.detail.clone();
    detail.truncate(detail.floor_char_boundary(MAX_DETAIL));
    message(wire::agent_message::Kind::State(wire::State {
        phase: phase(status.phase).into(),
        generation: status.generation.0,
        epoch: status.epoch.0,
        counted_restarts: status.counted_restarts,
        revision: status.revision,
        exit_code: exit.code(),
        exit_signal: exit.signal(),
        since_unix_nanos: status.since.0,
        detail,
        needs_host_kill: status.needs_host_kill,
        host_kill_before: status.host_kill_before.0,
        heartbeat: heartbeat(status.heartbeat).into(),
        starts: status.starts.map(starts),
        standbys: status.standbys.as_ref().map(standbys),
        progress: progress(&status.progress),
    }))
}

fn starts(starts: Starts) -> wire::Starts {
    wire::Starts {
        standby: starts.standby,
        cold: starts.cold,
        ahead_ms: u32::try_from(starts.ahead.as_millis()).unwrap_or(u32::MAX),
    }
}

fn standbys(standbys: &Standbys) -> wire::Standbys {
    wire::Standbys {
        wanted: standbys.wanted,
        ready: standbys.ready,
        memory_kib: standbys.memory_kib,
        modules: standbys.modules,
        reason: standbys.reason.clone(),
    }
}

fn progress(progress: &Progress) -> Option<wire::Progress> {
    (!progress.is_empty()).then(|| wire::Progress {
        step: progress.step,
        section: progress.section.clone(),
        error: progress.error.clone(),
    })
}

fn heartbeat(heartbeat: Heartbeat) -> wire::Heartbeat {
    match heartbeat {
        Heartbeat::Well => wire::Heartbeat::Unspecified,
        Heartbeat::Awaited => wire::Heartbeat::Awaited,
        Heartbeat::Missed => wire::Heartbeat::Missed,
        Heartbeat::Overdue => wire::Heartbeat::Overdue,
    }
}

fn phase(phase: Phase) -> wire::Phase {
    match phase {
        Phase::Fresh => wire::Phase::Fresh,
        Phase::Starting => wire::Phase::Starting,
        Phase::Running => wire::Phase::Running,
        Phase::Stopping => wire::Phase::Stopping,
        Phase::Parked => wire::Phase::Parked,
        Phase::Exited(_) => wire::Phase::Exited,
        Phase::Done => wire::Phase::Done,
    }
}

fn message(kind: wire::agent_message::Kind) -> wire::AgentMessage {
    wire::AgentMessage { kind: Some(kind) }
}
