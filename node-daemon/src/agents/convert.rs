//! Border of the agent protocol.

use lockstep_proto::agent::v1 as wire;
use lockstep_proto::agent::v1::agent_message::Kind;
use lockstep_protocol::beginning;
use prost::Message as _;

use crate::worker::types::{
    AgentPhase, AgentState, BootNanos, ContainerId, Epoch, Exit, Generation, Heartbeat, Progress, Standbys,
    Starts, Target, TerminalCodes, UnixNanos,
};

/// Longest text for people that is taken from an agent, in bytes.
const MAX_DETAIL: usize = 1024;
/// Longest version of an agent that is kept, in bytes.
const MAX_VERSION: usize = 64;
/// Longest container name and container id, in bytes. Those of Kubernetes and containerd are far
/// shorter.
const MAX_NAME: usize = 253;

/// A message of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentMessage {
    /// The first one.
    Register {
        /// Version of the agent's protocol.
        protocol: u32,
        /// Version of the agent.
        version: String,
        /// Name of its container.
        container: String,
        /// Id of its container; empty if the agent does not know it.
        id: ContainerId,
    },
    /// Any later one.
    State(AgentState),
}

/// Why a frame is not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A name or an id is not valid.
    #[error("its {0} is longer than {MAX_NAME} bytes, or has control characters")]
    InvalidName(&'static str),
    /// Neither Register nor State.
    #[error("a message of an unknown kind")]
    UnknownKind,
    /// A phase of another protocol version.
    #[error("unknown phase {0}")]
    UnknownPhase(i32),
}

/// Reads one frame.
///
/// # Errors
/// When it is not a message of this protocol.
pub fn decode(frame: &[u8]) -> Result<AgentMessage, DecodeError> {
    match wire::AgentMessage::decode(frame)?.kind {
        // Its epoch and generation are ignored: any process of the pod may send them.
        Some(Kind::Register(register)) => Ok(AgentMessage::Register {
            protocol: register.protocol,
            version: beginning(register.agent_version, MAX_VERSION),
            container: name("container", register.container)?,
            id: name("container id", register.container_id)?.into(),
        }),
        Some(Kind::State(state)) => Ok(AgentMessage::State(agent_state(state)?)),
        None => Err(DecodeError::UnknownKind),
    }
}

fn agent_state(state: wire::State) -> Result<AgentState, DecodeError> {
    let exit = Exit {
        code: state.exit_code,
        signal: state.exit_signal,
    };
    let phase = match state.phase() {
        wire::Phase::Fresh => AgentPhase::Fresh,
        wire::Phase::Starting => AgentPhase::Starting,
        wire::Phase::Running => AgentPhase::Running,
        wire::Phase::Stopping => AgentPhase::Stopping,
        wire::Phase::Parked => AgentPhase::Parked,
        wire::Phase::Exited => AgentPhase::Exited(exit),
        wire::Phase::Done => AgentPhase::Done(exit),
        wire::Phase::Unspecified => return Err(DecodeError::UnknownPhase(state.phase)),
    };
    let heartbeat = match state.heartbeat() {
        wire::Heartbeat::Unspecified => Heartbeat::Well,
        wire::Heartbeat::Awaited => Heartbeat::Awaited,
        wire::Heartbeat::Missed => Heartbeat::Missed,
        wire::Heartbeat::Overdue => Heartbeat::Overdue,
    };
    Ok(AgentState {
        phase,
        generation: Generation(state.generation),
        epoch: Epoch(state.epoch),
        counted_restarts: state.counted_restarts,
        revision: state.revision,
        since: UnixNanos(state.since_unix_nanos),
        detail: beginning(state.detail, MAX_DETAIL),
        needs_host_kill: state.needs_host_kill,
        // An older agent does not send it.
        host_kill_before: (state.host_kill_before != 0).then_some(BootNanos(state.host_kill_before)),
        heartbeat,
        starts: state.starts.map(starts),
        standbys: state.standbys.map(standbys),
        progress: state.progress.map(progress).unwrap_or_default(),
    })
}

fn starts(starts: wire::Starts) -> Starts {
    let wire::Starts {
        standby,
        cold,
        ahead_ms,
    } = starts;
    Starts {
        standby,
        cold,
        ahead_ms,
    }
    .bounded()
}

fn standbys(standbys: wire::Standbys) -> Standbys {
    let wire::Standbys {
        wanted,
        ready,
        memory_kib,
        modules,
        reason,
    } = standbys;
    Standbys {
        wanted,
        ready,
        memory_kib,
        modules,
        reason,
    }
    .bounded()
}

fn progress(progress: wire::Progress) -> Progress {
    let wire::Progress { step, section, error } = progress;
    Progress { step, section, error }.bounded()
}

fn name(what: &'static str, name: String) -> Result<String, DecodeError> {
    let is_name = name.len() <= MAX_NAME && !name.contains(char::is_control);
    is_name.then_some(name).ok_or(DecodeError::InvalidName(what))
}

/// Writes one target.
#[must_use]
pub fn encode(target: Target) -> Vec<u8> {
    let terminal_codes = target
        .terminal_codes
        .into_iter()
        .map(|TerminalCodes { negated, codes }| wire::TerminalCodes { negated, codes })
        .collect();
    wire::Target {
        epoch: target.epoch.0,
        generation: target.generation.0,
        counted_restarts: target.counted_restarts,
        release: target.release,
        start_fresh: target.start_fresh,
        grace_ms: target.grace_ms,
        terminal_codes,
        heartbeat_timeout_ms: target.heartbeat_timeout_ms,
        ready_timeout_ms: target.ready_timeout_ms,
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests;
