//! What is known of one worker container.

use super::super::types::{
    AgentPhase, AgentState, Ended, Generation, LinkId, Phase, PodUid, Target, UnixNanos, WorkerState,
};
use super::unsupervised::PeerState;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) pid: i32,
    /// True once its first State has come: until then the last known one is another link's.
    pub(super) spoke: bool,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) pod: PodUid,
    pub(super) name: String,
    /// First known to exist at this tick: its absence from a later listing means that it is gone.
    pub(super) seen: Option<u64>,
    /// It was made without the agent that it should have.
    pub(super) without_agent: bool,
    /// It is being stopped from outside.
    pub(super) stopping: bool,
    /// The generation that it was stopped for from outside; it should have ended since.
    pub(super) stopped_for: Option<Generation>,
    /// What its group did while it ran without its agent.
    pub(super) peers: PeerState,
    pub(super) link: Option<Link>,
    /// When the last link went down.
    pub(super) down_since: UnixNanos,
    pub(super) last: Option<AgentState>,
    /// The highest values that its agent can know.
    pub(super) limits: Option<AgentLimits>,
    pub(super) lost: Option<Loss>,
    pub(super) reported: Option<WorkerState>,
    /// The target that was sent last on this link.
    pub(super) sent: Option<Target>,
}

impl Worker {
    pub(super) fn new(pod: PodUid, name: String) -> Self {
        Self {
            pod,
            name,
            seen: None,
            without_agent: false,
            stopping: false,
            stopped_for: None,
            peers: PeerState::Unknown,
            link: None,
            down_since: UnixNanos::default(),
            last: None,
            limits: None,
            lost: None,
            reported: None,
            sent: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|state| matches!(state.phase, AgentPhase::Done(_)))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lost.is_some() || (self.is_done() && self.link.is_none())
    }

    /// The phase to report; none before the first State of its agent and before its end.
    pub(super) fn phase(&self) -> Option<PhaseReport> {
        if let Some(last) = &self.last
            && self.is_done()
        {
            return Some(PhaseReport::of_agent(last));
        }
        if let Some(Loss { ended, detail }) = self.lost {
            return Some(PhaseReport {
                phase: Phase::Lost(ended.exit),
                since: ended.at,
                detail: detail.to_owned(),
            });
        }
        let last = self.last.as_ref()?;
        if self.link.as_ref().is_some_and(|link| link.spoke) {
            return Some(PhaseReport::of_agent(last));
        }
        Some(PhaseReport {
            phase: Phase::Unlinked(Phase::Agent(last.phase).exit()),
            since: self.down_since,
            detail: last.detail.clone(),
        })
    }
}

/// The end of a container as it was observed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub(super) ended: Ended,
    /// For people.
    pub(super) detail: &'static str,
}

/// The highest generation and count of restarts that an agent can know of: those that it knew when
/// it first reported to this daemon, and those that it was sent since. Higher values are made up,
/// and are clamped.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentLimits {
    pub(super) generation: Generation,
    pub(super) counted_restarts: u64,
}

impl AgentLimits {
    pub(super) fn of(state: &AgentState) -> Self {
        Self {
            generation: state.generation,
            counted_restarts: state.counted_restarts,
        }
    }

    pub(super) fn raise(&mut self, target: &Target) {
        self.generation = self.generation.max(target.generation);
        self.counted_restarts = self.counted_restarts.max(target.counted_restarts);
    }
}

/// The phase of a worker as it is reported.
pub(super) struct PhaseReport {
    pub(super) phase: Phase,
    pub(super) since: UnixNanos,
    /// For people.
    pub(super) detail: String,
}

impl PhaseReport {
    pub(super) fn of_agent(state: &AgentState) -> Self {
        Self {
            phase: Phase::Agent(state.phase),
            since: state.since,
            detail: state.detail.clone(),
        }
    }
}
